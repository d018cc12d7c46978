//! Random stories: whatever happened, the kernel ends up with what a sync from nothing puts there.

use std::{collections::BTreeMap, time::Instant};

use proptest::{
    collection::btree_map,
    prelude::*,
    test_runner::{Config, TestRunner},
};

use super::{Subject, assert_as_from_nothing, assert_taken_over, start};
use crate::{
    config::NodeConfig,
    objects::Event,
    testing::{Stepped, arbitrary_config, arbitrary_events, proptest_config, soak_time},
};

/// The events of a node: events with a sync after each, and what comes with them, by the number
/// of the event.
#[derive(Clone, Debug)]
pub struct Story {
    /// The configuration with which the node starts.
    pub config: NodeConfig,
    /// The events.
    pub events: Vec<Event>,
    /// Other configurations of the node.
    pub configs: BTreeMap<usize, NodeConfig>,
    /// Syncs of which one transaction is refused, with the number of transactions before it.
    pub refused: BTreeMap<usize, usize>,
    /// Damage that other programs do, by the number of the damage.
    pub meddled: BTreeMap<usize, usize>,
}

impl Story {
    /// Random stories of up to `events` events.
    pub fn arbitrary(events: usize) -> impl Strategy<Value = Self> {
        (
            arbitrary_config(),
            arbitrary_events(events),
            btree_map(0..events, arbitrary_config(), 0..6),
            btree_map(0..events, 0..4usize, 0..6),
            btree_map(0..events, any::<usize>(), 0..3),
        )
            .prop_map(|(config, events, configs, refused, meddled)| Self {
                config,
                events,
                configs,
                refused,
                meddled,
            })
    }

    /// Replays the story. Another program's damage is followed by a resync: at the same time as
    /// an event, which may explain what is found, or alone, and then the damage is reported.
    /// Otherwise nothing is reported. The last sync succeeds.
    pub fn replay<S: Subject>(&self, subject: &S, node: &mut Stepped<S::Backend>) {
        let damages = subject.damages();
        let damages: Vec<_> = damages.iter().filter(|damage| damage.fits_any_state).collect();
        // Whether other programs have left the kernel alone since it was compared.
        let (mut has_synced, mut is_meddled) = (false, false);
        // Whether the last sync succeeded, so that it is known what the kernel should hold.
        let mut is_sure = false;
        for (i, event) in self.events.iter().enumerate() {
            let meddled = self.meddled.get(&i).filter(|_| has_synced && !is_meddled);
            let damage = meddled.map(|number| &damages[number % damages.len()]);
            let is_alone = is_sure && meddled.is_some_and(|number| number / damages.len() % 2 == 0);
            if let Some(damage) = damage
                && is_alone
            {
                let good = subject.listing();
                damage.inflict();
                let does_something = subject.listing() != good;
                let drift = node.full().drift;
                assert_eq!(drift.objects > 0, does_something, "{i}, {}: {drift:?}", damage.name);
            }
            // The objects may be wrong in all ways.
            node.tracker.apply(event.clone());
            if let Some(config) = self.configs.get(&i) {
                node.tracker.set_config(config.clone());
            }
            node.tracker.resolve();
            if let Some(damage) = damage
                && !is_alone
            {
                damage.inflict();
                node.tracker.request_resync();
                is_meddled = true;
            }
            if let Some(passing) = self.refused.get(&i) {
                subject.refuse(*passing..passing + 1);
            }
            let result = node.try_sync();
            let refused = subject.refused();
            subject.refuse(0..0);
            match result {
                Ok(report) => {
                    assert!(is_meddled || report.drift.is_none(), "{i}: {:?}", report.drift);
                    (has_synced, is_meddled, is_sure) = (true, false, true);
                }
                Err(error) => {
                    assert!(refused > 0, "{i}: {error:?}");
                    is_sure = false;
                }
            }
        }
        node.try_sync().expect("the last sync");
    }
}

/// After any story the kernel holds what a sync from nothing puts there, another instance takes it
/// over without a change, and other programs' objects are as they were.
pub fn any_story_ends_as_a_sync_from_nothing<S: Subject>(subject: &S) {
    let (begun, stories) = (Instant::now(), subject.stories());
    loop {
        // A soak run is limited by its time: stories are slow.
        let config = Config { cases: stories, ..proptest_config(stories) };
        let mut runner = TestRunner::new(config);
        let result = runner.run(&Story::arbitrary(subject.events()), |story| {
            subject.in_namespace(|| {
                let mut node = start(subject, story.config.clone());
                story.replay(subject, &mut node);
                assert_as_from_nothing(subject, node.tracker.state(), "after the story");
                assert_taken_over(subject, node.tracker.state());
            });
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{error}"));
        if soak_time().is_none_or(|soak_time| begun.elapsed() >= soak_time) {
            return;
        }
    }
}
