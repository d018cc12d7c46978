//! Node ports on loopback addresses, which need a setting of the kernel (`route_localnet`).
//!
//! A process without privileges can serve these node ports if an earlier one (`--init-only`) has
//! prepared the node. Without the setting, a connection to 127.0.0.1 would hang instead of being
//! refused, so the addresses are left out.

use std::{convert::Infallible, sync::Arc, time::Duration};

use switchyard_core::{config::NodeConfig, error::Chain, proxier::Backend};
use tokio::{sync::watch, task, time};

/// How often the setting is checked: sysctl files and other programs change it.
const PERIOD: Duration = Duration::from_secs(10);

/// Has the backend prepare the kernel for `node`. If that fails, takes localhost out of `node`.
pub fn prepare(backend: &dyn Backend, node: &mut NodeConfig) {
    if !node.serves_localhost() {
        return;
    }
    if let Err(error) = backend.prepare(node) {
        tracing::warn!(
            err = %Chain(&error),
            "Node ports are not served on localhost; an init container with --init-only can prepare \
             the node, or iptables.localhostNodePorts: false makes this configuration fit"
        );
        node.localhost_node_ports = false;
    }
}

/// Keeps the kernel prepared for the configuration in effect.
pub async fn keep(backend: Arc<dyn Backend>, node: watch::Receiver<NodeConfig>) -> Infallible {
    let mut fails = false;
    loop {
        time::sleep(PERIOD).await;
        let config = node.borrow().clone();
        if !config.serves_localhost() {
            fails = false;
            continue;
        }
        let backend = Arc::clone(&backend);
        let Ok(prepared) = task::spawn_blocking(move || backend.prepare(&config)).await else {
            continue;
        };
        if let Err(error) = &prepared
            && !fails
        {
            tracing::error!(err = %Chain(error), "Node ports cannot be reached on localhost");
        }
        fails = prepared.is_err();
    }
}
