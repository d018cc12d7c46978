//! Tests that every backend passes against its kernel.
//!
//! A backend describes itself as a [`Subject`], and one line makes a test of each story here:
//!
//! ```ignore
//! switchyard_core::conformance!(netlink, Nft::new());
//! ```
//!
//! The kit knows no kernel: the subject makes network namespaces, lists what the kernel holds,
//! damages what the backend has programmed, and has transactions refused. What a backend sends, and
//! in which words, is tested beside the backend.

mod engines;
mod isolation;
mod refusals;
mod repairs;
mod story;
mod syncs;

use std::ops::Range;

pub use self::{
    engines::{
        a_backend_serves_one_engine_after_another, an_engine_repairs_what_others_damage,
        the_monitor_reports_changes_of_others_alone,
    },
    isolation::{
        RefusedPart, a_refused_family_costs_the_other_nothing, a_refused_port_costs_nothing_else,
    },
    refusals::Refusals,
    repairs::{
        a_change_on_top_of_damage_is_made_good, a_sync_that_is_refused_halfway_is_made_good,
        damage_is_repaired_and_named,
    },
    story::{Story, any_story_ends_as_a_sync_from_nothing},
    syncs::{
        a_clean_up_is_total_and_repeatable, a_restart_sends_nothing, degraded_ports_are_reported,
        settings_of_the_node_apply_at_once,
    },
};
#[doc(inline)]
pub use crate::conformance;
use crate::{
    config::{LocalPodsConfig, NodeConfig},
    objects::Event,
    proxier::Proxier,
    state::State,
    testing::{NODE, Stepped, endpoint, service, slice, sync_first, web},
};

/// A backend under test, in the network namespace of the calling thread.
pub trait Subject: Sync {
    /// The backend.
    type Backend: Proxier + 'static;

    /// Runs `work` in a new network namespace, in which nothing is programmed.
    fn in_namespace<T: Send + Default>(&self, work: impl FnOnce() -> T + Send) -> T;

    /// Opens the backend.
    fn open(&self) -> Self::Backend;

    /// Lists everything that the kernel holds, other programs' objects included, in lines of which
    /// each describes one object. Two kernels that serve the same traffic have the same lines, in
    /// any order; [`Subject::may_remain`] has the exceptions. Panics if something in the kernel
    /// contradicts itself.
    fn dump(&self) -> String;

    /// Whether a line of [`Subject::dump`] describes an object that may stay after it is needed.
    fn may_remain(&self, _line: &str) -> bool {
        false
    }

    /// Lists what the backend has programmed as the kernel's own tools do. Repairs restore the
    /// listing to the letter.
    fn listing(&self) -> String;

    /// Checks further what the kernel should hold for a state. Panics if something is missing.
    fn check(&self, _state: &State) {}

    /// Adds objects of another program, some of them where the backend's own are.
    fn add_others(&self);

    /// Changes other programs' objects, and undoes the change. [`Subject::add_others`] was called
    /// before.
    fn change_others(&self);

    /// The damage that other programs may do after [`cluster`] was synced, to what does not depend
    /// on the endpoints of `dual`. At least one fits [any state](Damage::fits_any_state), and at
    /// least one is [reported](Damage::is_reported).
    fn damages(&self) -> Vec<Damage>;

    /// Refuses transactions: of all that follow this call, counted from 0, those in the range. An
    /// empty range refuses none.
    fn refuse(&self, transactions: Range<usize>);

    /// The number of transactions that were refused since [`Subject::refuse`].
    fn refused(&self) -> usize;

    /// Has the kernel, or a tool, refuse a part of what the backend sends from now on, and then of
    /// each transaction that has it; with `None`, nothing. The Service port's number is changed in
    /// each sync that is to be refused.
    fn refuse_part(&self, part: Option<&RefusedPart>);

    /// The prefix of the authors that the monitor names; `None` if the kernel does not name them.
    fn author(&self) -> Option<&'static str> {
        None
    }

    /// Service ports that the backend serves otherwise than asked.
    fn unservable(&self) -> Vec<Unservable> {
        Vec::new()
    }

    /// The number of random stories that are tried.
    fn stories(&self) -> u32 {
        64
    }

    /// The number of events a random story has at most.
    fn events(&self) -> usize {
        24
    }
}

/// A change that another program makes to what a backend has programmed.
pub struct Damage {
    /// The change in words, such as the command that makes it.
    pub name: String,
    /// A part of the drift's description.
    pub drift: &'static str,
    /// Whether the backend's monitor reports the damage within seconds.
    pub is_reported: bool,
    /// Whether the change can be made after any sync.
    pub fits_any_state: bool,
    inflict: Box<dyn Fn() + Send + Sync>,
}

impl Damage {
    /// A damage that the monitor reports, and that fits the state of [`cluster`] only.
    pub fn new(
        name: &str,
        drift: &'static str,
        inflict: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            drift,
            is_reported: true,
            fits_any_state: false,
            inflict: Box::new(inflict),
        }
    }

    /// The same damage, which fits any state.
    pub fn of_any_state(self) -> Self {
        Self { fits_any_state: true, ..self }
    }

    /// The same damage, which the monitor may report much later.
    pub fn unreported(self) -> Self {
        Self { is_reported: false, ..self }
    }

    /// Does the damage.
    pub fn inflict(&self) {
        (self.inflict)();
    }
}

/// A Service port that a backend serves otherwise than asked.
#[derive(Clone, Debug)]
pub struct Unservable {
    /// The Service port with its endpoints.
    pub events: Vec<Event>,
    /// The prefix of the Service port's id.
    pub port: &'static str,
    /// A part of the reason that is reported.
    pub reason: &'static str,
}

/// The node on which [`cluster`] is seen.
pub fn node_config() -> NodeConfig {
    let pods = LocalPodsConfig::ClusterCidr(vec![super::builders::net("10.244.0.0/16")]);
    NodeConfig { local_pods: pods, ..NodeConfig::new(NODE) }
}

/// A few Services: [`web`], `dual` of both families, and `idle` without endpoints.
pub fn cluster() -> Vec<Event> {
    let dual = service("dual", "10.96.0.4,fd00::4").port("dns", "UDP", 53);
    let slice6 = slice("dual", "6")
        .set("addressType", "IPv6")
        .port("dns", "UDP", 53)
        .endpoint(endpoint("fd01::20", "elsewhere"));
    let mut events = web();
    events.extend([
        dual.apply(),
        dual_slice(20),
        slice6.apply(),
        service("idle", "10.96.0.5").port("http", "TCP", 80).apply(),
    ]);
    events
}

/// The IPv4 endpoint of `dual`, by the last number of its address, which is 20 in [`cluster`].
fn dual_slice(last: u8) -> Event {
    slice("dual", "4")
        .port("dns", "UDP", 53)
        .endpoint(endpoint(&format!("10.244.0.{last}"), "elsewhere"))
        .apply()
}

/// A node that has synced nothing, beside objects of other programs.
fn start<S: Subject>(subject: &S, config: NodeConfig) -> Stepped<S::Backend> {
    subject.refuse(0..0);
    subject.add_others();
    Stepped::new(config, subject.open())
}

/// Asserts that two dumps differ in nothing but what may remain in the first.
#[track_caller]
fn assert_same<S: Subject>(subject: &S, have: &str, want: &str, what: &str) {
    let extra: Vec<&str> = have
        .lines()
        .filter(|line| !subject.may_remain(line) && !want.lines().any(|wanted| wanted == *line))
        .collect();
    let missing: Vec<&str> =
        want.lines().filter(|line| !have.lines().any(|had| had == *line)).collect();
    assert!(extra.is_empty() && missing.is_empty(), "{what}: {extra:#?} {missing:#?}");
}

/// Asserts that the kernel holds what a sync of this state from nothing would put there.
#[track_caller]
fn assert_as_from_nothing<S: Subject>(subject: &S, state: &State, what: &str) {
    let have = subject.dump();
    subject.check(state);
    assert_same(subject, &have, &dump_from_nothing(subject, state), what);
}

/// The dump of a kernel in which a state was synced from nothing.
fn dump_from_nothing<S: Subject>(subject: &S, state: &State) -> String {
    subject.in_namespace(|| {
        subject.add_others();
        sync_first(&mut subject.open(), state).expect("a sync from nothing");
        subject.dump()
    })
}

/// Asserts that a backend which finds what another one has programmed adds nothing, and soon finds
/// nothing to do: objects that are not needed may be removed in two steps.
#[track_caller]
fn assert_taken_over<S: Subject>(subject: &S, state: &State) {
    let before = subject.dump();
    let mut successor = subject.open();
    for _ in 0..2 {
        let report = sync_first(&mut successor, state).expect("a take-over");
        assert_eq!(report.added, 0, "a take-over adds nothing: {report:?}");
    }
    let report = sync_first(&mut successor, state).expect("a comparison");
    assert_eq!((report.added, report.removed, report.bytes), (0, 0, 0), "{report:?}");
    assert_same(subject, &before, &subject.dump(), "after a take-over");
}

/// Makes a module with a test of each story, for a
/// [`Subject`](crate::testing::conformance::Subject) that the expression makes. Stories of the
/// monitor are left out `without a monitor`.
#[macro_export]
macro_rules! conformance {
    ($module:ident, $subject:expr) => {
        $crate::conformance!(@module $module, $subject;
            the_monitor_reports_changes_of_others_alone
            an_engine_repairs_what_others_damage
        );
    };
    ($module:ident, $subject:expr, without a monitor) => {
        $crate::conformance!(@module $module, $subject;);
    };
    (@module $module:ident, $subject:expr; $($of_monitors:ident)*) => {
        mod $module {
            #[allow(unused_imports, reason = "the expression may be in any scope")]
            use super::*;

            $crate::conformance!(@stories $subject;
                a_restart_sends_nothing
                any_story_ends_as_a_sync_from_nothing
                damage_is_repaired_and_named
                a_change_on_top_of_damage_is_made_good
                a_sync_that_is_refused_halfway_is_made_good
                a_refused_port_costs_nothing_else
                a_refused_family_costs_the_other_nothing
                settings_of_the_node_apply_at_once
                a_clean_up_is_total_and_repeatable
                degraded_ports_are_reported
                a_backend_serves_one_engine_after_another
                $($of_monitors)*
            );
        }
    };
    (@stories $subject:expr; $($story:ident)*) => {
        $(
            #[test]
            fn $story() {
                $crate::testing::conformance::$story(&$subject);
            }
        )*
    };
}
