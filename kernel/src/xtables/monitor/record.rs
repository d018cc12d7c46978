//! The tables when all chains and jumps were last known to be there.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use switchyard_model::{IpFamily, PerFamily};

use super::Fingerprint;

/// A full sync is due at most this often.
const COMPARE_PERIOD: Duration = Duration::from_secs(10);
/// Resyncs take at most this part of the time.
const COMPARE_SHARE: u32 = 50;

/// The record of a family's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing has been programmed, so that nothing can be missing.
    #[default]
    Nothing,
    /// Another program may have changed something.
    Unsure,
    /// All chains and jumps were there at this fingerprint.
    Intact(Fingerprint),
}

/// A record of a program's own changes, by which its [`TableMonitor`](super::TableMonitor) knows
/// them from other programs'. The program that makes the changes and the monitor share it.
///
/// A program that changes a family's tables reads the [`Fingerprint`] before and after.
#[derive(Debug, Default)]
pub struct TableRecord(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    known: PerFamily<Known>,
    /// The time when everything was last compared, and how long that took.
    compared: Option<(Instant, Duration)>,
    /// Whether another program has changed something since, and left all chains and jumps.
    altered: bool,
}

impl State {
    /// A change of one family's tables moved the fingerprint; the other family's tables are as they
    /// were.
    fn carry(&mut self, before: Option<Fingerprint>, after: Fingerprint) {
        let Some(before) = before.filter(|before| before.is_common()) else { return };
        for family in IpFamily::ALL {
            let known = self.known.get_mut(family);
            if *known == Known::Intact(before) {
                *known = Known::Intact(after);
            }
        }
    }
}

impl TableRecord {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a family's tables were compared with what they should hold, and changed
    /// accordingly: everything is there.
    pub fn set_intact(
        &self,
        family: IpFamily,
        before: Option<Fingerprint>,
        after: Option<Fingerprint>,
    ) {
        let mut state = self.lock();
        if let Some(after) = after {
            state.carry(before, after);
        }
        *state.known.get_mut(family) = after.map_or(Known::Unsure, Known::Intact);
    }

    /// Records that a family's tables were changed without looking at the rest of them: everything
    /// is there if it was before.
    pub fn set_changed(
        &self,
        family: IpFamily,
        before: Option<Fingerprint>,
        after: Option<Fingerprint>,
    ) {
        let mut state = self.lock();
        let known = Some(*state.known.get(family));
        // The monitor may have looked already.
        let was_intact = [before, after].map(|print| print.map(Known::Intact)).contains(&known);
        if let Some(after) = after {
            state.carry(before, after);
        }
        *state.known.get_mut(family) = match after {
            Some(after) if was_intact => Known::Intact(after),
            _ => Known::Unsure,
        };
    }

    /// Records that everything in all families was compared, beginning at `start`.
    pub fn set_resynced(&self, start: Instant) {
        let mut state = self.lock();
        state.compared = Some((Instant::now(), start.elapsed()));
        state.altered = false;
    }

    /// Forgets everything, as nothing is programmed any more.
    pub fn clear(&self) {
        *self.lock() = State::default();
    }

    pub(super) fn get(&self, family: IpFamily) -> Known {
        *self.lock().known.get(family)
    }

    /// Records that all chains and jumps are there, unless the family was changed since it was
    /// `known`. The rules in the chains may have changed.
    pub(super) fn confirm(&self, family: IpFamily, known: Known, now: Option<Fingerprint>) {
        let mut state = self.lock();
        if *state.known.get(family) == known
            && let Some(now) = now
        {
            *state.known.get_mut(family) = Known::Intact(now);
            state.altered = true;
        }
    }

    /// The time when everything should be compared, because another program has changed something;
    /// `None` if none has.
    pub(super) fn resync_due(&self) -> Option<Instant> {
        let state = self.lock();
        let pause = |took: Duration| COMPARE_PERIOD.max(took.saturating_mul(COMPARE_SHARE));
        state.altered.then(|| match state.compared {
            Some((at, took)) => at.checked_add(pause(took)).unwrap_or(at),
            None => Instant::now(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fingerprint::Kind, *};

    const V4: IpFamily = IpFamily::V4;
    const V6: IpFamily = IpFamily::V6;

    #[test]
    fn own_changes_of_one_family_are_none_of_the_other() {
        let [one, two, three] = [1, 2, 3].map(|i| Some(Fingerprint(Kind::Generation(i))));
        let record = TableRecord::default();
        record.set_intact(V4, one, two);
        assert_eq!(record.get(V6), Known::Nothing);
        record.set_intact(V6, two, three);
        assert_eq!(record.get(V4), Known::Intact(three.unwrap()));
        record.set_changed(V4, three, one);
        assert_eq!(record.get(V6), Known::Intact(one.unwrap()));

        // Legacy tables of the families change independently.
        let [one, two] = [1, 2].map(|i| Some(Fingerprint(Kind::Legacy(i))));
        record.set_intact(V4, None, one);
        record.set_intact(V6, one, two);
        assert_eq!(record.get(V4), Known::Intact(one.unwrap()));
    }

    #[test]
    fn changes_of_others_are_not_taken_for_own() {
        let [one, two, three] = [1, 2, 3].map(|i| Some(Fingerprint(Kind::Generation(i))));
        let record = TableRecord::default();
        record.set_intact(V4, None, one);
        // The tables differ already before the change.
        record.set_changed(V4, two, three);
        assert_eq!(record.get(V4), Known::Unsure);
        assert_eq!(record.resync_due(), None);
        record.confirm(V4, Known::Intact(one.unwrap()), three);
        assert_eq!(record.get(V4), Known::Unsure, "the look was older than the change");
        record.confirm(V4, Known::Unsure, three);
        assert_eq!(record.get(V4), Known::Intact(three.unwrap()));
        assert!(record.resync_due().is_some());
        let start = Instant::now();
        record.set_resynced(start);
        assert_eq!(record.resync_due(), None);
        record.confirm(V4, Known::Intact(three.unwrap()), one);
        assert!(record.resync_due().unwrap() >= start + COMPARE_PERIOD);
    }
}
