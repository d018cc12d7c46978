//! Node ports on loopback addresses of IPv4, which need a setting of the kernel (`route_localnet`).
//!
//! The setting is made after a sync ([`RouteLocalnet`]), behind the backend's rules that keep other
//! hosts from loopback addresses. A process without privileges can serve these node ports if an
//! earlier one (`--init-only`) has prepared the node. Without the setting, a connection to
//! 127.0.0.1 would hang instead of being refused, so the addresses are left out.

use std::{
    convert::Infallible,
    future::pending,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use switchyard_core::{
    config::NodeConfig,
    error::ErrorChain,
    model::IpFamily,
    proxier::{Profile, Proxier, ProxierError},
    runner::{EngineEvent, Input, Observer, SyncOutcome},
};
use switchyard_kernel::sysctl::{can_route_localnet, route_localnet, routes_localnet};
use tokio::{
    sync::{mpsc::Sender, watch},
    time,
};

/// The interval at which the setting is checked: sysctl files and other programs change it.
const PERIOD: Duration = Duration::from_secs(10);

/// The configuration of the node.
pub(crate) struct Node {
    /// The configuration as it was asked for.
    pub(crate) asked: NodeConfig,
    /// The configuration that the engine has: without localhost where that cannot be served.
    pub(crate) used: NodeConfig,
}

impl Node {
    pub(crate) fn new(mut asked: NodeConfig, profile: &Profile) -> Self {
        asked.localhost_node_ports &= !profile.is_beside;
        let mut used = asked.clone();
        check(profile, &mut used);
        Self { asked, used }
    }
}
/// Takes localhost out of `node` if the backend or the kernel cannot serve it.
fn check(profile: &Profile, node: &mut NodeConfig) {
    if !profile.guards_loopback {
        // Without a translation, sockets serve.
        node.localhost_node_ports &= !profile.translates_flows;
    } else if node.serves_localhost()
        && let Err(error) = can_route_localnet()
    {
        tracing::warn!(
            err = %ErrorChain(&error),
            "Localhost node ports disabled; an init container with --init-only can prepare \
             the node, or localhostNodePorts: false makes this configuration fit"
        );
        node.localhost_node_ports = false;
    }
}

/// Prepares the node for a program without the privileges of this one: sets the kernel's parameters
/// that syncs cannot set then. Where the rules cannot be written that keep other hosts from
/// loopback addresses, `route_localnet` is left as it is, with a warning.
///
/// # Errors
/// If the kernel's parameters cannot be set.
pub fn prepare(proxier: &mut dyn Proxier, node: &NodeConfig) -> Result<(), ProxierError> {
    let Profile { mode, guards_loopback, .. } = proxier.profile();
    let serves = guards_loopback && node.serves_localhost();
    match proxier.prepare(node) {
        // A backend that serves localhost prepares nothing but the rules.
        Err(error) if serves && can_route_localnet().is_ok() => {
            tracing::warn!(
                err = %ErrorChain(&error),
                "Node not prepared for localhost node ports"
            );
            Ok(())
        }
        Ok(()) if serves => route_localnet().map_err(|error| {
            ProxierError::backend(mode, "cannot have loopback addresses routed", error)
        }),
        result => result,
    }
}

/// Has the kernel route loopback addresses once the rules keep other hosts from them.
#[derive(Debug)]
pub(crate) struct RouteLocalnet {
    is_guarded: AtomicBool,
    has_failed: AtomicBool,
}

impl RouteLocalnet {
    /// Returns the observer; `None` for a backend that does not guard loopback addresses.
    pub(crate) fn new(profile: &Profile) -> Option<Self> {
        let (is_guarded, has_failed) = (AtomicBool::new(true), AtomicBool::new(false));
        profile.guards_loopback.then_some(Self { is_guarded, has_failed })
    }
}

impl Observer for RouteLocalnet {
    fn on_event(&self, event: &EngineEvent<'_>) {
        let EngineEvent::Synced(SyncOutcome { change, report, .. }) = event else { return };
        // A change of a few rules does not look at those that guard.
        if change.is_resync() || report.loopback_unguarded {
            self.is_guarded.store(!report.loopback_unguarded, Relaxed);
        }
        let is_served =
            change.programs(IpFamily::V4) && change.after().node.node_ports.v4.has_loopback();
        if !is_served || !self.is_guarded.load(Relaxed) {
            return;
        }
        match route_localnet() {
            Ok(()) => self.has_failed.store(false, Relaxed),
            // One line is enough. A failure is no reason to serve nothing.
            Err(_) if self.has_failed.swap(true, Relaxed) => {}
            Err(error) => tracing::error!(
                err = %ErrorChain(&error),
                "Node ports cannot be reached at loopback addresses"
            ),
        }
    }
}

/// Has the engine compare everything, and so make the setting, whenever another program has
/// switched it off. Logs whether node ports are served on IPv4's localhost, whenever that changes.
pub(crate) async fn watch(
    profile: &Profile,
    node: watch::Receiver<Node>,
    engine: Sender<Input>,
) -> Infallible {
    if !profile.guards_loopback {
        pending().await
    }
    let mut before = Localhost::Unasked;
    // For how many periods the setting has been off.
    let mut off = 0_u32;
    loop {
        time::sleep(PERIOD).await;
        let now = Localhost::of(&node.borrow().used);
        // Traffic may reach the sockets of a proxy without the setting.
        if now != before && profile.translates_flows {
            now.log();
        }
        off = if now == Localhost::NotRouted { off + 1 } else { 0 };
        // More and more rarely: the setting is not made where it cannot be written, nor without
        // rules that keep other hosts out.
        if off.is_power_of_two() {
            // The program ends by itself when the engine has ended.
            let _ = engine.send(Input::Compare).await;
        }
        before = now;
    }
}

/// The state of node ports on loopback addresses of IPv4.
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
