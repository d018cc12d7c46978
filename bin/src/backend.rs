//! The one place that knows all four backends.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use backend_iptables::{IptablesConfig, IptablesProxier, Stats};
use backend_ipvs::IpvsProxier;
use backend_nft::{NftConfig, NftProxier, transport::TransportKind};
use backend_userspace::UserspaceProxier;
use ipnet::IpNet;
use proxy_core::{
    config::NodePortAddressConfig,
    model::{IpFamily, PerFamily},
    proxier::{Monitor, Proxier, ProxierError, SyncReport},
    state::{Delta, State},
};

use crate::config::settings::{BackendSettings, Mode, NftTransport, Settings};

/// The backend alone.
fn bare(settings: &BackendSettings) -> Result<Box<dyn Proxier>, ProxierError> {
    Ok(match settings.mode {
        Mode::Nftables => Box::new(nftables(settings)?),
        Mode::Iptables => Box::new(IptablesProxier::new(iptables_config(settings))?),
        Mode::Ipvs => Box::new(IpvsProxier::new()?),
        Mode::Userspace => Box::new(UserspaceProxier::new()?),
    })
}

/// Makes the backend that the configuration selects. Nothing is programmed yet. Once it is, what
/// other modes left behind is removed: until then that serves.
pub fn build(settings: &BackendSettings) -> Result<Built, ProxierError> {
    let tidying =
        |inner| Box::new(Tidying { inner, untidied: Some(settings.clone()), tried: None });
    if settings.mode != Mode::Iptables {
        let proxier = tidying(bare(settings)?);
        return Ok(Built { proxier, families: families(), stats: None });
    }
    let proxier = IptablesProxier::new(iptables_config(settings))?.usable()?;
    let stats = Some(proxier.stats());
    Ok(Built { families: proxier.families(), proxier: tidying(Box::new(proxier)), stats })
}

/// A backend, and what belongs to it.
pub struct Built {
    /// The backend.
    pub proxier: Box<dyn Proxier>,
    /// The families that it programs.
    pub families: PerFamily<bool>,
    /// What it counts, beside what it reports of each sync.
    pub stats: Option<Arc<Stats>>,
}

/// Makes those settings of the kernel that the backend would make with its first rules, and that it
/// may lack the privilege for then.
pub fn prepare(settings: &Settings) -> Result<(), ProxierError> {
    let mode = settings.backend.mode;
    if mode == Mode::Iptables
        && settings.backend.localhost_node_ports
        && serves_loopback(&settings.node.node_port_addresses)
    {
        backend_iptables::route_localnet().map_err(|error| ProxierError::Backend {
            mode: mode.as_str(),
            message: "cannot have loopback addresses routed".to_owned(),
            source: Some(Box::new(error)),
        })?;
    }
    Ok(())
}

/// Whether node ports are served on all addresses of IPv4, loopback addresses among them. What
/// `primary` means is not known yet, but hardly that.
fn serves_loopback(entries: &[NodePortAddressConfig]) -> bool {
    let lengths = entries.iter().filter_map(|entry| match entry {
        NodePortAddressConfig::Cidr(IpNet::V4(net)) => Some(net.prefix_len()),
        NodePortAddressConfig::Cidr(IpNet::V6(_)) => None,
        NodePortAddressConfig::Primary => Some(32),
    });
    // Without any they are not limited.
    lengths.min().is_none_or(|widest| widest == 0)
}

/// Removes what any backend programs, whichever the configuration selects: nobody should have to
/// know which one ran here. All are tried even if one fails; the first error is returned.
pub async fn cleanup(settings: &BackendSettings) -> Result<(), ProxierError> {
    remove(&Mode::ALL, settings).await
}

/// Removes what the backends of these modes program. One that cannot run here has nothing to
/// remove; but to remove iptables rules takes none of the programs that the backend needs.
async fn remove(modes: &[Mode], settings: &BackendSettings) -> Result<(), ProxierError> {
    let mut result = Ok(());
    for &mode in modes {
        let one = match mode {
            Mode::Iptables => backend_iptables::cleanup(),
            _ => match bare(&BackendSettings { mode, ..settings.clone() }) {
                Ok(mut backend) => backend.cleanup().await,
                Err(error) => Err(error),
            },
        };
        match one {
            Err(ProxierError::Unsupported { mode, reason }) => {
                tracing::debug!(mode, reason = reason.as_str(), "Nothing to clean up");
            }
            other => result = result.and(other),
        }
    }
    result
}

/// The modes whose rules would disturb those of `mode`, or double them. iptables and ipvs share
/// chains, as kube-proxy's do, so neither may remove the other's.
fn others(mode: Mode) -> &'static [Mode] {
    match mode {
        Mode::Nftables => &[Mode::Iptables, Mode::Ipvs, Mode::Userspace],
        Mode::Iptables | Mode::Ipvs => &[Mode::Nftables],
        Mode::Userspace => &[Mode::Nftables, Mode::Iptables, Mode::Ipvs],
    }
}

/// How long to wait before what could not be removed is tried again.
const TIDY_AGAIN: Duration = Duration::from_secs(60);

/// A backend that removes what other modes left behind after its first sync; or after a later one,
/// if that fails: it comes before our rules in each packet's way.
struct Tidying {
    inner: Box<dyn Proxier>,
    untidied: Option<BackendSettings>,
    tried: Option<Instant>,
}

#[async_trait]
impl Proxier for Tidying {
    fn mode(&self) -> &'static str {
        self.inner.mode()
    }

    async fn sync(&mut self, state: &State, delta: &Delta) -> Result<SyncReport, ProxierError> {
        let report = self.inner.sync(state, delta).await?;
        let is_due = self.tried.is_none_or(|tried| tried.elapsed() >= TIDY_AGAIN);
        if let Some(settings) = self.untidied.take_if(|_| is_due)
            && let Err(error) = remove(others(settings.mode), &settings).await
        {
            let why = crate::error_chain(&error);
            tracing::error!(err = why, "Failed to remove what another mode left behind");
            self.tried = Some(Instant::now());
            self.untidied = Some(settings);
        }
        Ok(report)
    }

    async fn cleanup(&mut self) -> Result<(), ProxierError> {
        self.inner.cleanup().await
    }

    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        self.inner.monitor()
    }
}

/// The transport that the configuration selects.
pub fn transport(settings: &BackendSettings) -> TransportKind {
    match settings.nft_transport {
        NftTransport::Netlink => TransportKind::Netlink,
        NftTransport::Json => TransportKind::Json,
    }
}

fn nftables(settings: &BackendSettings) -> Result<NftProxier, ProxierError> {
    let transport = transport(settings).open().map_err(|error| ProxierError::Backend {
        mode: Mode::Nftables.as_str(),
        message: format!("cannot open the {} transport", transport_name(settings.nft_transport)),
        source: Some(Box::new(error)),
    })?;
    Ok(NftProxier::new(nft_config(settings), transport))
}

fn transport_name(transport: NftTransport) -> &'static str {
    match transport {
        NftTransport::Netlink => "netlink",
        NftTransport::Json => "json",
    }
}

/// What the nftables backend is configured with on this node.
pub fn nft_config(settings: &BackendSettings) -> NftConfig {
    NftConfig { masquerade_bit: settings.masquerade_bit, families: families() }
}

/// What the iptables backend is configured with on this node.
pub fn iptables_config(settings: &BackendSettings) -> IptablesConfig {
    IptablesConfig {
        masquerade_bit: settings.masquerade_bit,
        families: families(),
        localhost_node_ports: settings.localhost_node_ports,
        ..IptablesConfig::default()
    }
}

/// The families that this kernel has: IPv4 always, IPv6 unless it is switched off.
pub fn families() -> PerFamily<bool> {
    let disabled = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    let v6 = fs::exists("/proc/net/if_inet6").unwrap_or(false)
        && disabled.map_or(true, |text| text.trim() != "1");
    PerFamily { v4: true, v6 }
}

/// The families that the backend of these settings will program.
pub fn supported(settings: &BackendSettings) -> PerFamily<bool> {
    match settings.mode {
        Mode::Iptables => backend_iptables::probe(&iptables_config(settings)).unwrap_or_default(),
        _ => families(),
    }
}

/// The families that are switched on.
pub fn enabled(families: &PerFamily<bool>) -> Vec<IpFamily> {
    IpFamily::ALL.into_iter().filter(|family| *families.of(*family)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_among_all_addresses() {
        let serves = |entries: &[&str]| {
            let entry = |text: &&str| match *text {
                "primary" => NodePortAddressConfig::Primary,
                net => NodePortAddressConfig::Cidr(net.parse().unwrap()),
            };
            serves_loopback(&entries.iter().map(entry).collect::<Vec<_>>())
        };
        assert!(serves(&[]) && serves(&["10.0.0.0/8", "0.0.0.0/0"]));
        assert!(serves(&["fd00::/8"]), "that limits the other family only");
        assert!(!serves(&["10.0.0.0/8"]) && !serves(&["primary"]));
    }

    #[test]
    fn modes_that_are_not_built_say_so() {
        for mode in [Mode::Ipvs, Mode::Userspace] {
            let settings = BackendSettings {
                mode,
                masquerade_bit: 14,
                nft_transport: NftTransport::Netlink,
                localhost_node_ports: true,
            };
            let error = bare(&settings).err().unwrap().to_string();
            assert_eq!(
                error,
                format!(
                    "{mode} cannot be used on this node: \
                     the {mode} backend is not built yet; use nftables"
                )
            );
        }
    }
}
