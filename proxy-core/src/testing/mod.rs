//! Objects and event sequences for tests, of this crate and of backends (feature `testing`).
//!
//! Objects are written as the API's JSON and decoded as a source would decode them, so that a test
//! exercises decoding too. Here are:
//!
//! - builders: [`service`], [`slice()`], [`node`], [`service_cidr`] and [`endpoint`] make the JSON
//!   of an ordinary object; [`Builder::set`] changes any field of it;
//! - strategies: [`arbitrary_events`] makes sequences of events about a small, crowded cluster,
//!   [`arbitrary_config`] a node to see it from;
//! - a node that syncs when asked: [`Stepped`], and a single sync from nothing: [`sync_first`];
//! - a process that a source tells what it will, with its runner: [`Process`]; and what packets are
//!   to find then: [`service_fates`]; and the judge of stories about a kernel's troubles:
//!   [`simulation`];
//! - stories that every backend passes against its kernel: [`conformance`];
//! - what benchmarks of syncs share: [`macro@bench`];
//! - waiting for another thread or process: [`until()`];
//! - the schemas of JSON output: [`check_schema`];
//! - seeds of random tests, and of property tests the configuration: [`proptest_config`];
//! - an oracle: [`final_objects`] says what a sequence of events leaves, [`resolve_afresh`] what a
//!   new tracker makes of it, and [`assert_invariants`] checks what [`crate::state`] promises.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what tests are made of fails by panics"
)]

pub mod bench;
mod builders;
pub mod conformance;
mod judge;
mod many;
mod oracle;
mod owned;
mod resolved;
mod schema;
mod seeds;
pub mod simulation;
mod stepped;
mod story;
mod strategies;
mod until;

pub use self::{
    builders::{Builder, endpoint, list, node, service, service_cidr, slice, web, web_slice},
    judge::{local_addresses, packets_to, service_fates},
    many::ManyServices,
    oracle::{
        assert_capabilities, assert_invariants, assert_least_weights, final_objects, resolve_afresh,
    },
    owned::OwnedTransition,
    resolved::{pool, port_id, resolved_port},
    schema::check_schema,
    seeds::{clock_seed, proptest_config, replayed_seed, soak_time},
    stepped::{Stepped, sync_first},
    story::{Process, Telling, arbitrary_telling},
    strategies::{
        arbitrary_builder, arbitrary_capabilities, arbitrary_config, arbitrary_event,
        arbitrary_events,
    },
    until::until,
};

/// The name of the node that builders and strategies call this one.
pub const NODE: &str = "node-1";
/// The namespace of objects that builders and strategies make.
pub const NAMESPACE: &str = "ns";
