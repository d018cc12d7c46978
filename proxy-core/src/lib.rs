//! Kubernetes Services, resolved for one node.
//!
//! Data flows one way through this crate. Follow one Service:
//!
//! 1. [`objects`]: it arrives as an [`objects::Event`], cut down to what a proxy reads, from any
//!    source: an API server, files, an embedder's own watches.
//! 2. [`track`]: it is parsed and kept; what cannot be used is a [`track::Problem`] with the name
//!    of the object and the field.
//! 3. `resolve`: its policies are applied to it and its endpoints, for the node that
//!    [`config::NodeConfig`] describes.
//! 4. [`state`]: what this node should program, decided, and what changed since the last sync.
//! 5. [`runner`]: decides when, and hands both to
//! 6. a [`proxier::Proxier`], the backend.
//!
//! [`model`] has the words that all of them share. The crate knows no kernel, no Kubernetes client
//! and no process-wide state.

pub mod config;
pub mod model;
pub mod objects;
pub mod proxier;
mod resolve;
pub mod runner;
pub mod state;
#[cfg(feature = "testing")]
pub mod testing;
pub mod track;
