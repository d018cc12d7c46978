//! Node ports on loopback addresses. Those of IPv4 need a setting of the kernel (`route_localnet`), and
//! that of IPv6 needs [`sockets`].
//!
//! The backend makes the setting when it syncs, behind rules that keep other hosts from loopback addresses.
//! A process without privileges can serve these node ports if an earlier one (`--init-only`) has
//! prepared the node. Without the setting, a connection to 127.0.0.1 would hang instead of being
//! refused, so the addresses are left out.

pub mod sockets;

use std::{convert::Infallible, time::Duration};

use switchyard_core::{
    config::NodeConfig,
    error::ErrorChain,
    proxier::{Backend, Mode, ProxierError},
    runner::Input,
};
use switchyard_interfaces::routes_localnet;
use tokio::{
    sync::{mpsc::Sender, watch},
    time,
};

/// How often the setting is checked: sysctl files and other programs change it.
const PERIOD: Duration = Duration::from_secs(10);

/// Takes localhost out of `node` if the backend's syncs could not have the kernel serve it.
pub fn check(backend: &dyn Backend, node: &mut NodeConfig) {
    if !node.serves_localhost() {
        return;
    }
    if let Err(error) = backend.is_prepared(node) {
        tracing::warn!(
            err = %ErrorChain(&error),
            "Node ports are not served on localhost; an init container with --init-only can prepare \
             the node, or iptables.localhostNodePorts: false makes this configuration fit"
        );
        node.localhost_node_ports = false;
    }
}

/// Has the backend prepare the node for a program without its privileges (`--init-only`). Where the rules
/// cannot be written that keep other hosts from loopback addresses, the setting is left as it is, with a
/// warning: [`check`] then finds out what localhost comes to.
///
/// # Errors
/// If the kernel's parameters cannot be set.
pub fn prepare(backend: &dyn Backend, node: &NodeConfig) -> Result<(), ProxierError> {
    let Err(error) = backend.prepare(node) else { return Ok(()) };
    // A backend that serves localhost prepares nothing else, and what it could not do is the rules.
    if !node.serves_localhost() || backend.is_prepared(node).is_err() {
        return Err(error);
    }
    tracing::warn!(err = %ErrorChain(&error), "The node is not prepared for node ports on localhost");
    Ok(())
}

/// Has the engine compare everything, and so make the setting, whenever another program has switched it off.
/// Logs whether node ports are served on IPv4's localhost, whenever that changes.
pub async fn watch(
    mode: Mode,
    node: watch::Receiver<NodeConfig>,
    engine: Sender<Input>,
) -> Infallible {
    let mut before = Localhost::Unasked;
    // For how many periods the setting has been off.
    let mut off = 0_u32;
    loop {
        time::sleep(PERIOD).await;
        let now = Localhost::of(&node.borrow());
        // Traffic of userspace mode may reach its sockets without the setting.
        if now != before && mode != Mode::USERSPACE {
            now.log();
        }
        off = if now == Localhost::NotRouted { off + 1 } else { 0 };
        // More and more rarely: the setting is not made where it cannot be written, nor without rules that
        // keep other hosts out.
        if off.is_power_of_two() {
            // The program ends by itself when the engine has ended.
            let _ = engine.send(Input::Compare).await;
        }
        before = now;
    }
}

/// What node ports on loopback addresses of IPv4 come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Localhost {
    /// The configuration serves none, or [`check`] has left them out.
    Unasked,
    /// The setting is on.
    Routed,
    /// The setting is off.
    NotRouted,
}

impl Localhost {
    fn of(node: &NodeConfig) -> Self {
        match node.serves_localhost() {
            false => Self::Unasked,
            true if routes_localnet() => Self::Routed,
            true => Self::NotRouted,
        }
    }

    fn log(self) {
        match self {
            Self::Unasked => tracing::info!("Node ports are no longer served on 127.0.0.1"),
            Self::Routed => {
                tracing::info!("Rules can serve node ports on 127.0.0.1: route_localnet is on");
            }
            Self::NotRouted => {
                tracing::info!("Node ports are not served on 127.0.0.1: route_localnet is off");
            }
        }
    }
}
