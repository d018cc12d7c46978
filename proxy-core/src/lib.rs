//! Kubernetes Services, resolved for one node.
//!
//! Data flows one way through this crate:
//!
//! 1. [`objects`]: Services, EndpointSlices, Nodes and ServiceCIDRs, cut down to what a proxy
//!    reads, arrive as [`objects::Event`]s from any source.
//! 2. [`model`]: the words of the trade (families, protocols, names, addresses).
//! 3. [`state`]: what this node should program, decided; and what changed.
//! 4. [`proxier`]: the trait that a backend implements.
//!
//! The crate knows no kernel, no Kubernetes client and no process-wide state.

pub mod model;
pub mod objects;
pub mod proxier;
pub mod state;
