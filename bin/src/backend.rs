//! The one place that knows all four backends.

use std::fs;

use backend_iptables::{IptablesConfig, IptablesProxier, Monitor};
use backend_ipvs::IpvsProxier;
use backend_nft::{NftConfig, NftProxier, transport::TransportKind};
use backend_userspace::UserspaceProxier;
use proxy_core::{
    model::{IpFamily, PerFamily},
    proxier::{Proxier, ProxierError},
};

use crate::config::settings::{BackendSettings, Mode, NftTransport};

/// Makes the backend that the configuration selects. It does not program anything yet.
pub fn build(settings: &BackendSettings) -> Result<Box<dyn Proxier>, ProxierError> {
    Ok(match settings.mode {
        Mode::Nftables => Box::new(nftables(settings)?),
        Mode::Iptables => Box::new(IptablesProxier::new(iptables_config(settings))?),
        Mode::Ipvs => Box::new(IpvsProxier::new()?),
        Mode::Userspace => Box::new(UserspaceProxier::new()?),
    })
}

/// Makes the backend that the configuration selects, and what notices that somebody else has taken
/// its rules away, where the backend needs to be told.
pub fn build_watched(
    settings: &BackendSettings,
) -> Result<(Box<dyn Proxier>, Option<Monitor>), ProxierError> {
    if settings.mode != Mode::Iptables {
        return Ok((build(settings)?, None));
    }
    let proxier = IptablesProxier::new(iptables_config(settings))?;
    let monitor = proxier.monitor();
    Ok((Box::new(proxier), Some(monitor)))
}

/// Removes what any backend programs, whichever the configuration selects: nobody should have to
/// know which one ran here. A backend that cannot run here has nothing to remove. The others are
/// tried even if one fails; the first error is returned.
pub async fn cleanup(settings: &BackendSettings) -> Result<(), ProxierError> {
    let mut result = Ok(());
    for mode in Mode::ALL {
        let one = match build(&BackendSettings { mode, ..settings.clone() }) {
            Ok(mut backend) => backend.cleanup().await,
            Err(error) => Err(error),
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

fn nftables(settings: &BackendSettings) -> Result<NftProxier, ProxierError> {
    let kind = match settings.nft_transport {
        NftTransport::Netlink => TransportKind::Netlink,
        NftTransport::Json => TransportKind::Json,
    };
    let transport = kind.open().map_err(|error| ProxierError::Backend {
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

/// The families that are switched on.
pub fn enabled(families: &PerFamily<bool>) -> Vec<IpFamily> {
    IpFamily::ALL.into_iter().filter(|family| *families.of(*family)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_that_are_not_built_say_so() {
        for mode in [Mode::Ipvs, Mode::Userspace] {
            let settings =
                BackendSettings { mode, masquerade_bit: 14, nft_transport: NftTransport::Netlink };
            let error = build(&settings).err().unwrap().to_string();
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
