//! An API server in the namespace of the program.

use api_standin::{Options, Standin, load};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime;

use crate::namespace::{Namespace, Program, until_ok_async};

pub(crate) const NODE: &str = "node-1";

/// A server in the namespace, and a kubeconfig for it.
pub(crate) struct Cluster {
    pub(crate) server: Standin,
    pub(crate) directory: TempDir,
}

impl Cluster {
    /// With a Node, and nothing else.
    pub(crate) async fn start() -> Self {
        let server = Standin::start(Options::default()).await;
        let mut node = load::node(NODE);
        node["status"]["addresses"] = json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
        server.store().apply(node);
        let directory = TempDir::new().unwrap();
        server.write_kubeconfig(&directory.path().join("kubeconfig"));
        Self { server, directory }
    }

    /// The arguments for the program to use it.
    pub(crate) fn arguments(&self) -> [String; 3] {
        let kubeconfig = self.directory.path().join("kubeconfig");
        [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--hostname-override={NODE}"),
            // The limit belongs to the machine, not to the namespace.
            "--conntrack-max-per-core=0".into(),
        ]
    }

    /// Starts the program in the namespace with these arguments besides.
    pub(crate) fn run_program(&self, namespace: &Namespace, more: &[&str]) -> Program {
        let mut command = namespace.switchyard(more);
        command.args(self.arguments());
        Program::spawn(command)
    }

    /// Waits for an Event with this reason, whose note has this in it.
    pub(crate) async fn event(&self, reason: &str, part: &str) -> Value {
        self.event_that(reason, |event| {
            event["reason"] == reason && event["note"].as_str().unwrap_or_default().contains(part)
        })
        .await
    }

    /// Waits for an Event; `what` is for the message if there is none.
    pub(crate) async fn event_that(&self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        until_ok_async(|| {
            let events = self.server.events();
            let found = events.iter().find(|event| is_wanted(event)).cloned();
            found.ok_or_else(|| format!("{what} is not in {events:#?}"))
        })
        .await
    }
}

/// Runs a test whose server is in the namespace.
pub(crate) fn run<F: Future<Output = ()>>(test: impl FnOnce(Namespace) -> F + Send) {
    let namespace = Namespace::new();
    let inside = namespace.0.clone();
    let on_thread = || {
        let runtime =
            runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(test(namespace));
    };
    inside.run(on_thread).unwrap();
}
