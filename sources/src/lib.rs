#![doc = include_str!("../README.md")]
//!
//! # What a source is
//!
//! A source is a task that sends [`Event`](switchyard_core::objects::Event)s about Services,
//! EndpointSlices, Nodes and ServiceCIDRs until the receiver is dropped. For each kind, a source
//! sends all objects and then `Listed`, or all of them in one `Replace`, and single changes after
//! that. A source fails only if it cannot start at all: later trouble is logged and retried, and
//! the last good state stays. A source that is started again needs a receiver that knows no objects
//! yet.
//!
//! - `kube` (feature `kube`): the watches of an API server.
//! - `manifests` (feature `manifests`): a directory of files.

#[cfg(feature = "kube")]
pub mod kube;
#[cfg(feature = "manifests")]
pub mod manifests;
#[cfg(any(feature = "kube", feature = "manifests"))]
mod wording;
