#![doc = include_str!("../README.md")]
//!
//! Programs embed the crate `switchyard`, which has this engine and what belongs around it.
//! `switchyard/examples/backend.rs` in the repository is a backend in fifty lines.
//!
//! # How it works
//!
//! Data flows one way through this crate. Follow one Service:
//!
//! 1. [`objects`]: it arrives as an [`objects::Event`], cut down to what a proxy reads, from any
//!    source: an API server, files, an embedder's own watches.
//! 2. [`track`]: it is parsed and kept; what cannot be used is a [`track::Problem`] with the name
//!    of the object and the field.
//! 3. `resolve`: its policies are applied to it and its endpoints, for the node that
//!    [`config::NodeConfig`] describes.
//! 4. [`state`]: what this node should program, decided; and [`transition`]: the step to it from
//!    what was synced last.
//! 5. [`runner`]: decides when, and hands the step to
//! 6. a [`proxier::Proxier`], the backend.
//!
//! An [`engine::Engine`] runs all of that on a thread of its own.
//!
//! [`maglev`] has the tables by which nodes choose endpoints alike, for backends that look
//! endpoints up. [`model`] has the words that all of them share. The crate has no process-wide state.
//!
//! # Features
//!
//! - `runner` (default): [`engine`], [`runner`] and [`worker`], which need tokio.
//! - `k8s-openapi`: `From` conversions of that crate's types into [`objects`]. The program that is
//!   built selects the version of the API.
//! - `serde`: `Serialize` for [`state::State`] and everything in it, and for [`explain`].
//! - `testing`: objects, strategies and oracles for tests of backends.

#![forbid(unsafe_code)]

pub mod config;
#[cfg(feature = "runner")]
pub mod engine;
pub mod explain;
pub mod maglev;
pub mod objects;
mod parsed;
pub mod proxier;
mod resolve;
#[cfg(feature = "runner")]
pub mod runner;
pub mod state;
#[cfg(feature = "testing")]
pub mod testing;
pub mod track;
pub mod transition;
#[cfg(feature = "runner")]
pub mod worker;

pub use switchyard_model::{self as model, error};
