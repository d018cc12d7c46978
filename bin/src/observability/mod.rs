//! The metrics and the health of the node agent, and the HTTP servers for both.
//!
//! ```text
//! engine -> Metrics      -> /metrics            (http::metrics)
//!        -> ProxyHealth  -> /healthz, /livez    (http::healthz)
//! ```
//!
//! The module knows no backend: counts of rules are in the reports of syncs
//! ([`SyncReport`](switchyard_core::proxier::SyncReport)).

pub mod conntrack;
pub mod http;
pub mod metrics;
pub mod status;
pub mod watches;
