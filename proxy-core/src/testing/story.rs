//! A process that a source tells of objects, in simulated time.

use std::{net::IpAddr, sync::Arc, time::Duration};

use proptest::{prelude::*, sample::select};
use tokio::{sync::mpsc, task::JoinHandle, time::sleep};

use super::{arbitrary_event, assert_invariants, final_objects};
use crate::{
    config::NodeConfig,
    objects::{Event, Kind},
    proxier::{Profile, Proxier},
    runner::{Input, Observer, Runner, RunnerConfig},
    state::State,
    track::Tracker,
};

/// An act of a source.
#[derive(Clone, Debug)]
pub enum Telling {
    /// It sends an event.
    Event(Box<Event>),
    /// It sends the last event again.
    Again,
    /// It lists all objects of a kind, as after a 410.
    List(Kind),
    /// It lists all objects of a kind as they were before as many events, and then as they are.
    OldList(Kind, usize),
    /// It does nothing for as many milliseconds.
    Quiet(u64),
}

/// All that a source may do.
pub fn arbitrary_telling() -> impl Strategy<Value = Telling> {
    let kind = || select(&Kind::ALL);
    prop_oneof![
        20 => arbitrary_event().prop_map(|event| Telling::Event(event.into())),
        1 => Just(Telling::Again),
        1 => kind().prop_map(Telling::List),
        1 => (kind(), 1..6usize).prop_map(|(kind, before)| Telling::OldList(kind, before)),
        2 => (1..120_000u64).prop_map(Telling::Quiet),
    ]
}

/// A process, by its runner.
pub struct Process {
    inputs: mpsc::Sender<Input>,
    runner: JoinHandle<()>,
    profile: Profile,
}

impl Process {
    /// Starts a process in the present runtime, which is to be told everything that these events
    /// have left.
    pub async fn start(
        config: NodeConfig,
        addresses: impl IntoIterator<Item = IpAddr>,
        proxier: Box<dyn Proxier>,
        observer: Arc<dyn Observer>,
        known: &[Event],
    ) -> Self {
        let (tracker, timing) = (Tracker::new(config), RunnerConfig::default());
        let profile = proxier.profile();
        let runner = Runner::new(tracker, proxier, timing, observer).watched(true);
        let (inputs, received) = mpsc::channel(64);
        let runner = tokio::spawn(async move {
            runner.run(received, std::future::pending()).await;
        });
        let process = Self { inputs, runner, profile };
        process.send(Input::InterfaceAddresses(addresses.into_iter().collect())).await;
        for kind in Kind::ALL {
            process.tell(list(kind, known)).await;
        }
        process
    }

    /// Sends an input. A process that has ended takes none.
    pub async fn send(&self, input: Input) {
        let _ = self.inputs.send(input).await;
    }

    async fn tell(&self, event: Event) {
        self.send(Input::Event(event)).await;
    }

    /// Has the source do something. `sent` are all events of the source, to whichever process.
    pub async fn play(&self, telling: Telling, sent: &mut Vec<Event>) {
        match telling {
            Telling::Event(event) => {
                sent.push((*event).clone());
                self.tell(*event).await;
            }
            Telling::Again => {
                if let Some(event) = sent.last().cloned() {
                    sent.push(event.clone());
                    self.tell(event).await;
                }
            }
            Telling::List(kind) => self.tell(list(kind, sent)).await,
            Telling::OldList(kind, before) => {
                self.tell(list(kind, &sent[..sent.len().saturating_sub(before)])).await;
                sleep(Duration::from_millis(300)).await;
                self.tell(list(kind, sent)).await;
            }
            Telling::Quiet(milliseconds) => sleep(Duration::from_millis(milliseconds)).await,
        }
    }

    /// Asserts that a state is what a process resolves that was told nothing but what is left of
    /// what was `sent`.
    #[track_caller]
    pub fn assert_knows(
        &self,
        synced: &State,
        sent: &[Event],
        config: &NodeConfig,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) {
        let mut tracker = Tracker::new(config.clone());
        tracker.set_capabilities(self.profile.capabilities, self.profile.mode);
        tracker.set_interface_addresses(addresses);
        for object in final_objects(sent) {
            tracker.apply(Event::Apply(object));
        }
        tracker.resolve();
        assert_invariants(synced);
        assert_eq!(synced, tracker.state(), "what was synced is what is known");
    }

    /// Whether the runner has ended by itself.
    pub fn is_over(&self) -> bool {
        self.runner.is_finished()
    }

    /// Ends the process, wherever it waits.
    pub fn kill(self) {
        self.runner.abort();
    }
}

/// The list of all objects of a kind that these events have left.
fn list(kind: Kind, events: &[Event]) -> Event {
    let mut objects = final_objects(events);
    objects.retain(|object| object.key().kind == kind);
    Event::Replace { kind, objects, malformed: Vec::new() }
}
