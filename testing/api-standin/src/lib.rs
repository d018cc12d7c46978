//! A stand-in for the Kubernetes API server.
//!
//! It speaks the list and watch protocol that a Service proxy depends on, over TLS and HTTP/1.1, in
//! JSON and protobuf, for Nodes, Services, EndpointSlices and ServiceCIDRs: resource versions,
//! pages, selectors, bookmarks, streamed lists, a log of events and the errors of a server whose
//! log does not reach back far enough. It accepts Events in JSON and keeps them.
//!
//! Its purpose is faults that a test switches on ([`Faults`]): connections that are cut or go
//! silent, slow answers, errors, missing permissions, an expired log, lists that end in an error or
//! not at all, a restored backup, revoked certificates, objects that no client can decode. It
//! validates nothing, adds missing fields only to the objects of [`Manifests`], and keeps
//! everything in memory. [`Direct`] is the same without sockets. Where the environment names the
//! programs of a genuine API server, [`control_plane`] starts that.
//!
//! ```no_run
//! # async fn example() {
//! let server = api_standin::Standin::start(api_standin::Options::default()).await;
//! server.write_kubeconfig("/tmp/kubeconfig".as_ref());
//! server.store().apply(serde_json::json!({
//!     "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
//! }));
//! server.faults().cut_connections();
//! # }
//! ```

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not published")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what tests are made of fails by panics"
)]

mod answer;
pub mod control_plane;
mod defaults;
mod direct;
mod faults;
mod list;
pub mod load;
mod log;
mod manifests;
mod media;
mod protobuf;
mod query;
mod resource;
mod route;
mod selector;
mod server;
mod state;
mod store;
mod tls;
mod watch;

pub use self::{
    direct::Direct,
    faults::Faults,
    manifests::Manifests,
    resource::Resource,
    server::{Options, Standin},
    store::{Backup, Store},
    tls::ClientCertificate,
};
