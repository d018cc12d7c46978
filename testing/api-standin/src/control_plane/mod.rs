//! A genuine API server and its etcd, for tests.
//!
//! Nothing of them is in this repository: the variables `KUBE_APISERVER` and `ETCD` name the
//! programs. Tests that can use them run against the stand-in ([`Standin`](crate::Standin)) always, and against
//! the genuine pair where both variables are set. The servers listen on loopback addresses, have
//! their files in their own directory, and end with the value, or with the process.
//!
//! ```no_run
//! use api_standin::control_plane::{ControlPlane, Options, Programs, User};
//!
//! # async fn example() {
//! let Some(programs) = Programs::find() else { return };
//! let server = ControlPlane::start(programs, Options::default()).await;
//! server.apply(serde_json::json!({
//!     "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"},
//! })).await;
//! println!("{}", server.kubeconfig(User::KubeProxy).display());
//! # }
//! ```

mod objects;
mod programs;
mod seed;
mod server;
mod users;

pub use self::{
    programs::Programs,
    server::{ControlPlane, Options},
    users::User,
};
