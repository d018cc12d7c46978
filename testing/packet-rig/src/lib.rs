//! The packet rig shows where packets go.
//!
//! A [`Topology`] is a small cluster made of network namespaces: the node under test, a second
//! node, pods on both and a client outside. [`EchoServer`]s in it answer with their name and the
//! client's address; a [`Probe`] makes a request with a real socket. So a test observes what the
//! kernel did, whatever the rules look like.
//!
//! Namespaces have no names and belong to the process ([`NetNs`]): nothing is left behind, even by
//! `SIGKILL`. Root is needed.
//!
//! ```no_run
//! use packet_rig::{EchoServer, Probe, Protocol, Target, Topology};
//!
//! let topology = Topology::new()?;
//! let pod = topology.place("a").unwrap();
//! let _server = EchoServer::start(&pod.namespace, "a", 8080, &[Protocol::Tcp])?;
//! let target: Target = "tcp://10.244.1.10:8080".parse().unwrap();
//! let outcome = Probe::new(target).run(&topology.node().namespace)?;
//! assert_eq!(outcome.endpoint(), Some("a"));
//! # Ok::<(), packet_rig::RigError>(())
//! ```

#![allow(missing_docs, reason = "not published")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what tests are made of fails by panics"
)]

pub mod address;
pub mod backend;
pub mod binary;
pub mod capability;
pub mod case;
pub mod chi_square;
mod conversation;
mod echo;
mod error;
mod expect;
mod flows;
pub mod http;
pub mod kube_proxy;
mod load;
mod netns;
pub mod objects;
mod outcome;
pub mod page;
mod probe;
mod protocol;
pub mod proxy;
pub mod results;
mod rig;
mod run;
mod shares;
pub mod spawn;
mod subject;
pub mod suite;
mod topology;
pub mod wait;
mod workdir;

pub use test_netns::skipped;

pub use self::{
    case::Case,
    conversation::Conversation,
    echo::{Answer, EchoServer},
    error::{Result, RigError, chain},
    flows::forget_flows,
    load::{LoadGenerator, LoadPlan, LoadReport, Tally},
    netns::NetNs,
    outcome::Outcome,
    probe::Probe,
    protocol::{BadTarget, Protocol, Target},
    proxy::{Objects, Proxy, ProxyOptions},
    rig::Rig,
    run::{Failure, KEEP, run_case},
    shares::{SharePlan, answers},
    subject::{CommandLine, Subject},
    suite::Suite,
    topology::{Layout, Place, Topology},
    workdir::WorkDir,
};
