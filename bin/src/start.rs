//! The start of proxying: chooses the mode, prepares the node, and then runs the proxy.

use std::sync::Arc;

use switchyard_core::{
    config::NodePortAddressConfig,
    error::ErrorChain,
    proxier::{Backend, Mode},
};
use switchyard_kernel::route::SharedAddresses;

use crate::config::{
    Loaded,
    flags::Flags,
    release,
    settings::{ConntrackSettings, Settings},
};
use crate::{
    Failure, backends, process, run,
    select::{self, Chosen},
    sysctl,
};

/// Chooses the mode and prepares the node. Then proxies, unless `--init-only` is given; so this
/// returns only after `--init-only`, or with the reason why the program ends.
pub fn start(loaded: &Loaded, flags: &Flags) -> Result<(), Failure> {
    process::raise_file_limit();
    let api_addresses = SharedAddresses::default();
    let traffic = Arc::default();
    let backends = backends::all(loaded, &api_addresses, &traffic)?;
    let chosen = choose_mode(loaded, &backends)?;
    let mut settings = loaded.with_mode(chosen.mode)?;
    settings.backend.ipvs.api_addresses = api_addresses;
    if let Some(conntrack) = &settings.conntrack {
        set_conntrack(conntrack, flags.is_on("init-only") && !process::may_administer_networks())?;
    }
    if flags.is_on("init-only") {
        switchyard::prepare(&mut *chosen.probed.open()?, &settings.node)?;
        tracing::info!(mode = %settings.backend.mode, "Node prepared");
        return Ok(());
    }
    if let Some(score) = settings.oom_score_adj {
        process::set_oom_score_adj(score);
    }
    log_start(&settings);
    // kubeadm's configuration names neither.
    if loaded.named_mode().is_none()
        && loaded.config.node_port_addresses.is_empty()
        && settings.node.node_port_addresses.contains(&NodePortAddressConfig::Localhost)
    {
        tracing::info!(
            "Node ports are served on primary addresses and localhost only; without a mode, \
             kube-proxy serves them on all addresses, as nodePortAddresses: [0.0.0.0/0, \"::/0\"] \
             does"
        );
    }
    match run::run(&settings, loaded, flags, (backends, &traffic), chosen) {
        Ok(never) => match never {},
        Err(error) => Err(error.into()),
    }
}

/// Chooses the configured mode, or the best mode that this node can run.
fn choose_mode(loaded: &Loaded, backends: &[Arc<dyn Backend>]) -> Result<Chosen, Failure> {
    let named = loaded.named_mode();
    let chosen = match select::choose(named, |mode| select::probe(backends, mode)) {
        Ok(chosen) => chosen,
        Err(error) if named == Some(Mode::USERSPACE) || process::may_administer_networks() => {
            return Err(error.into());
        }
        Err(error) => {
            return Err(format!(
                "{error}; without CAP_NET_ADMIN, --proxy-mode userspace serves clients on this \
                 machine alone"
            )
            .into());
        }
    };
    for error in &chosen.passed_over {
        let (mode, reason) = (error.mode(), select::reason(error));
        tracing::info!(%mode, reason, "Proxy mode not supported by this node");
    }
    if let Some(warning) = &chosen.warning {
        tracing::warn!(warning = warning.as_str(), "Falling back to another proxy mode");
    }
    Ok(chosen)
}

/// Sets the limits and timeouts of connection tracking. A failure is fatal if the values are
/// configured, or if the program is to prepare the node and lacks the privilege; another failure to
/// set defaults is logged. Nodes that are containers cannot set them all, whatever the privilege.
fn set_conntrack(conntrack: &ConntrackSettings, lacks_privilege: bool) -> Result<(), Failure> {
    let Err(error) = sysctl::Kernel::default().set_conntrack(conntrack) else { return Ok(()) };
    let why = ErrorChain(&error);
    if conntrack.is_asked_for || lacks_privilege {
        return Err(format!(
            "could not set conntrack parameters from kube-proxy configuration: {why}"
        )
        .into());
    }
    tracing::warn!(err = %why, "Failed to set conntrack limits and timeouts");
    Ok(())
}

fn log_start(settings: &Settings) {
    tracing::info!(
        version = release::OURS,
        mode = %settings.backend.mode,
        node = settings.node.node_name.as_str(),
        "Starting"
    );
}
