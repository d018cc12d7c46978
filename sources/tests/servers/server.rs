//! A server that a scenario runs with.

use std::fmt;

use api_standin::{
    Options, Resource, Standin,
    control_plane::{self, ControlPlane, Programs, User},
    load,
};
use serde_json::{Value, json};

/// The server's answer to a request for a streamed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// It streams lists if it can. With an etcd that lacks progress requests, a genuine server
    /// cannot.
    Streamed,
    /// The feature is off. The stand-in has JSON alone then.
    Paged,
}

impl Lists {
    pub const ALL: [Self; 2] = [Self::Streamed, Self::Paged];
}

impl fmt::Display for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Streamed => "streamed",
            Self::Paged => "paged",
        })
    }
}

/// A stand-in, or a genuine server.
pub enum Server {
    Standin(Box<Standin>),
    Genuine(Box<ControlPlane>),
}

impl Server {
    /// Starts a stand-in with the namespace of the scenarios.
    pub async fn standin(lists: Lists) -> Self {
        let options = Options { streaming_lists: lists == Lists::Streamed, ..Options::default() };
        let server = Standin::start(options).await;
        server.faults().offers_protobuf(lists == Lists::Streamed);
        // A genuine server makes this object at its start.
        load::fill(server.store(), 0, 0);
        Self::Standin(Box::new(server))
    }

    /// Starts a genuine server with the namespace of the scenarios.
    pub async fn genuine(programs: Programs, lists: Lists) -> Self {
        let mut options = control_plane::Options::default();
        if lists == Lists::Paged {
            options.flags.push("--feature-gates=WatchList=false".to_owned());
        }
        let server = ControlPlane::start(programs, options).await;
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": load::NAMESPACE},
        });
        server.apply(namespace).await;
        Self::Genuine(Box::new(server))
    }

    /// The kubeconfig of a user who may do what kube-proxy may.
    pub fn kubeconfig(&self) -> String {
        match self {
            Self::Standin(server) => server.kubeconfig(),
            Self::Genuine(server) => {
                std::fs::read_to_string(server.kubeconfig(User::KubeProxy)).unwrap()
            }
        }
    }

    /// Creates or replaces an object.
    pub async fn apply(&self, object: Value) {
        match self {
            Self::Standin(server) => {
                server.store().apply(object);
            }
            Self::Genuine(server) => server.apply(object).await,
        }
    }

    /// Deletes the object of this kind and name.
    pub async fn delete(&self, object: &Value) {
        match self {
            Self::Standin(server) => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let kind = |resource: &Resource| resource.kind() == object["kind"];
                let resource = Resource::ALL.into_iter().find(kind).unwrap();
                let (namespace, name) =
                    (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
                assert!(server.store().delete(resource, &namespace, &name));
            }
            Self::Genuine(server) => server.delete(object).await,
        }
    }

    /// Ends all watches, and refuses connections from now on.
    pub fn stop(&mut self) {
        match self {
            Self::Standin(server) => {
                server.faults().refuse_connections(true);
                server.faults().cut_connections();
            }
            Self::Genuine(server) => server.stop_api_server(),
        }
    }

    /// Serves again. No client can go on where it stopped.
    pub async fn start(&mut self) {
        match self {
            Self::Standin(server) => {
                server.store().expire_log();
                server.faults().refuse_connections(false);
            }
            Self::Genuine(server) => server.start_api_server().await,
        }
    }
}
