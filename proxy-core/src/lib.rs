//! Kubernetes Services, resolved for one node.
//!
//! ```
//! use switchyard_core::{
//!     config::NodeConfig,
//!     engine::Engine,
//!     objects::{EndpointSlice, Kind, Service},
//! };
//!
//! # use async_trait::async_trait;
//! # use switchyard_core::{
//! #     proxier::{Mode, Profile, Proxier, ProxierError, SyncReport},
//! #     transition::Transition,
//! # };
//! # use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
//! # struct MyBackend(UnboundedSender<String>);
//! # #[async_trait]
//! # impl Proxier for MyBackend {
//! #     fn profile(&self) -> Profile {
//! #         Profile::new(Mode::new("mine"))
//! #     }
//! #     async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
//! #         for port in change.after().service_ports.values() {
//! #             let to: Vec<_> = port.reachable().map(|to| to.address.to_string()).collect();
//! #             let _ = self.0.send(format!("{} -> {}", port.id.name, to.join(", ")));
//! #         }
//! #         Ok(SyncReport::default())
//! #     }
//! #     async fn clean_up(&mut self) -> Result<(), ProxierError> {
//! #         Ok(())
//! #     }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (sender, mut programmed) = unbounded_channel();
//! # let my_backend = MyBackend(sender);
//! // A backend, such as `NftProxier::open(NftConfig::default())?` of `switchyard-nft`.
//! let engine = Engine::builder(NodeConfig::new("node-1")).start(my_backend)?;
//!
//! // The lists of your own watches; a directory or an API server have crates of their own.
//! let service: Service = serde_json::from_str(
//!     r#"{
//!         "metadata": {"namespace": "shop", "name": "web"},
//!         "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}
//!     }"#,
//! )?;
//! let slice: EndpointSlice = serde_json::from_str(
//!     r#"{
//!         "metadata": {
//!             "namespace": "shop",
//!             "name": "web-1",
//!             "labels": {"kubernetes.io/service-name": "web"}
//!         },
//!         "addressType": "IPv4",
//!         "ports": [{"name": "", "port": 8080}],
//!         "endpoints": [{"addresses": ["10.244.1.7"]}]
//!     }"#,
//! )?;
//! engine.replace(Kind::Service, [service.into()]).await?;
//! engine.replace(Kind::EndpointSlice, [slice.into()]).await?;
//! // Later, single changes: `engine.apply(object)` and `engine.delete(key)`.
//!
//! assert_eq!(programmed.recv().await.as_deref(), Some("shop/web -> 10.244.1.7:8080"));
//! engine.stop()?; // What was programmed stays, and the next engine takes over.
//! # Ok(())
//! # }
//! ```
//!
//! Programs embed the crate `switchyard`, which has this engine and what belongs around it:
//! `docs/embedding.md` in the repository is the guide. `switchyard/examples/backend.rs` is a
//! backend in fifty lines.
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
//! endpoints up. [`model`] has the words that all of them share. The crate knows no kernel, no
//! Kubernetes client and no process-wide state.
//!
//! # Features
//!
//! - `runner` (default): [`engine`], [`runner`] and [`worker`], which need tokio.
//! - `k8s-openapi`: `From` conversions of that crate's types into [`objects`]. The program that is
//!   built selects the version of the API.
//! - `serde`: `Serialize` for [`state::State`] and everything in it.
//! - `testing`: objects, strategies and oracles for tests of backends.

#![forbid(unsafe_code)]

pub mod config;
#[cfg(feature = "runner")]
pub mod engine;
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
