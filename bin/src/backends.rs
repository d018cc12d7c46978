//! The table of backends, which is all that the program knows about single backends.

use std::{env, sync::Arc, time::Duration};

use switchyard_core::{
    model::PerFamily,
    proxier::{Backend, Mode, ProxierError},
};
use switchyard_iptables::{IptablesBackend, IptablesConfig};
use switchyard_ipvs::{IpvsBackend, IpvsConfig, IpvsTimeouts};
use switchyard_kernel::{families, nftables::TransportKind, route::SharedAddresses};
use switchyard_nft::{NftBackend, NftConfig};
use switchyard_userspace::{UserspaceBackend, UserspaceConfig, forwarder::Counters};

use crate::config::{
    ConfigError, Loaded,
    settings::{BackendSettings, IpvsSettings, NftTransport, UserspaceSettings},
};
use crate::reachable;

/// A function that makes a backend from its part of the settings, for these families.
type MakeBackend = fn(&BackendSettings, PerFamily<bool>, &Arc<Counters>) -> Arc<dyn Backend>;

/// Every backend, by its mode. A new backend is one more row.
const TABLE: &[(Mode, MakeBackend)] = &[
    (Mode::NFTABLES, |settings, families, _| {
        Arc::new(NftBackend::new(nft_config(settings, families)))
    }),
    (Mode::IPTABLES, |settings, families, _| {
        Arc::new(IptablesBackend::new(iptables_config(settings, families)))
    }),
    (Mode::IPVS, |settings, families, _| {
        Arc::new(IpvsBackend::new(ipvs_config(settings, families)))
    }),
    (Mode::USERSPACE, |settings, families, traffic| {
        let mut config = userspace_config(settings, families);
        config.counters = Arc::clone(traffic);
        Arc::new(UserspaceBackend::new(config))
    }),
];

/// The environment variable that, if not empty, allows nftables mode on any version of the kernel,
/// as with kube-proxy.
const SKIP_KERNEL_CHECK: &str = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK";

/// The modes that a configuration may name.
pub const MODES: [Mode; TABLE.len()] = {
    let mut modes = [Mode::NFTABLES; TABLE.len()];
    let mut i = 0;
    while i < TABLE.len() {
        modes[i] = TABLE[i].0;
        i += 1;
    }
    modes
};

/// Makes all backends, each with the settings of its own mode, for the families of this node.
/// `api_addresses` are those of [`crate::api_addresses`], and `traffic` gets what userspace mode
/// counts.
///
/// # Errors
/// If the configuration cannot be applied to a mode.
pub fn all(
    loaded: &Loaded,
    api_addresses: &SharedAddresses,
    traffic: &Arc<Counters>,
) -> Result<Vec<Arc<dyn Backend>>, ConfigError> {
    let families = families();
    // Beside another proxy, the rules of other modes are that proxy's.
    let is_beside = loaded.settings.node.service_proxy_name.is_some();
    let table = TABLE.iter().filter(|(mode, _)| !is_beside || *mode == Mode::NFTABLES);
    let make = |(mode, make): &(Mode, MakeBackend)| {
        let mut settings = loaded.with_mode(*mode)?;
        settings.backend.ipvs.api_addresses = api_addresses.clone();
        Ok(make(&settings.backend, families, traffic))
    };
    table.map(make).collect()
}

/// Returns the backend of a mode. Beside another proxy, there are not all.
pub fn get(backends: &[Arc<dyn Backend>], mode: Mode) -> Result<&Arc<dyn Backend>, ProxierError> {
    let found = backends.iter().find(|backend| backend.profile().mode == mode);
    found.ok_or_else(|| ProxierError::unusable(mode, format!("there is no {mode} backend")))
}

/// Returns the configuration of the nftables backend.
pub fn nft_config(settings: &BackendSettings, families: PerFamily<bool>) -> NftConfig {
    let mut config = NftConfig::default();
    config.masquerade_bit = settings.masquerade_bit;
    config.families = families;
    config.transport = match settings.nft_transport {
        NftTransport::Netlink => TransportKind::Netlink,
        NftTransport::Json => TransportKind::Json,
    };
    config.any_kernel = env::var_os(SKIP_KERNEL_CHECK).is_some_and(|value| !value.is_empty());
    match &settings.beside {
        Some(name) => config.beside(name),
        None => config,
    }
}

fn iptables_config(settings: &BackendSettings, families: PerFamily<bool>) -> IptablesConfig {
    let mut made = IptablesConfig::default();
    made.masquerade_bit = settings.masquerade_bit;
    made.families = families;
    made
}

fn ipvs_config(settings: &BackendSettings, families: PerFamily<bool>) -> IpvsConfig {
    let IpvsSettings {
        scheduler,
        strict_arp,
        exclude_cidrs,
        tcp_timeout,
        tcp_fin_timeout,
        udp_timeout,
        drain_limit,
        run_estimation,
        api_addresses,
    } = &settings.ipvs;
    let mut made = IpvsConfig::default();
    made.masquerade_bit = settings.masquerade_bit;
    made.families = families;
    made.scheduler.clone_from(scheduler);
    made.strict_arp = *strict_arp;
    made.excluded.clone_from(exclude_cidrs);
    made.timeouts =
        IpvsTimeouts { tcp: *tcp_timeout, tcp_fin: *tcp_fin_timeout, udp: *udp_timeout };
    if let Some(limit) = drain_limit {
        made.drain_limit = if limit.is_zero() { Duration::MAX } else { *limit };
    }
    made.run_estimation = *run_estimation;
    made.never_bound = api_addresses.clone();
    made
}

fn userspace_config(settings: &BackendSettings, families: PerFamily<bool>) -> UserspaceConfig {
    let UserspaceSettings { capture, is_named, udp_timeout, connections, drain: _, table } =
        &settings.userspace;
    let mut made = UserspaceConfig::default();
    // Another word was rejected when the flags were parsed.
    made.capture = capture.as_ref().and_then(|name| name.parse().ok());
    made.may_use_loopback = *is_named;
    made.families = families;
    made.masquerade_bit = settings.masquerade_bit;
    made.forwarder.connections = *connections;
    if let Some(timeout) = udp_timeout {
        made.forwarder.udp_idle = *timeout;
    }
    made.table = Some(reachable::show(table.clone()));
    made
}

#[cfg(test)]
mod tests {
    use switchyard_core::proxier::{self, Profile};
    use switchyard_userspace::{CaptureMode, forwarder::ForwarderConfig};

    use super::*;
    use crate::config::testing::loaded;

    fn with_defaults() -> Vec<Arc<dyn Backend>> {
        all(&loaded(&[]), &SharedAddresses::default(), &Arc::default()).unwrap()
    }

    fn modes(backends: &[Arc<dyn Backend>]) -> Vec<Mode> {
        backends.iter().map(|backend| backend.profile().mode).collect()
    }

    #[test]
    fn every_backend_has_the_mode_of_its_row() {
        assert_eq!(modes(&with_defaults()), MODES);
    }

    #[test]
    fn ipvs_mode_has_what_is_configured() {
        let families = PerFamily { v4: true, v6: false };
        let config = |arguments: &[&str]| {
            let settings = loaded(arguments).with_mode(Mode::IPVS).unwrap();
            ipvs_config(&settings.backend, families)
        };
        let mut expected = IpvsConfig::default();
        expected.families = families;
        assert_eq!(config(&["--proxy-mode=ipvs"]), expected, "kube-proxy's defaults");
        let found = config(&[
            "--proxy-mode=ipvs",
            "--iptables-masquerade-bit=7",
            "--ipvs-scheduler=wlc",
            "--ipvs-strict-arp",
            "--ipvs-exclude-cidrs=10.9.0.0/16,fd00::/64",
            "--ipvs-tcp-timeout=1h",
            "--ipvs-tcpfin-timeout=2m",
            "--ipvs-udp-timeout=3s",
            "--ipvs-drain-limit=5m",
            "--ipvs-run-estimation=false",
        ]);
        expected.masquerade_bit = 7;
        expected.scheduler = "wlc".into();
        expected.strict_arp = true;
        expected.excluded = ["10.9.0.0/16", "fd00::/64"].map(|net| net.parse().unwrap()).into();
        let seconds = Duration::from_secs;
        expected.timeouts =
            IpvsTimeouts { tcp: seconds(3600), tcp_fin: seconds(120), udp: seconds(3) };
        expected.drain_limit = seconds(300);
        expected.run_estimation = Some(false);
        assert_eq!(found, expected);
        let unlimited = config(&["--proxy-mode=ipvs", "--ipvs-drain-limit=0"]);
        assert_eq!(unlimited.drain_limit, Duration::MAX);
    }

    #[test]
    fn ipvs_mode_learns_the_addresses_of_the_api_server() {
        let settings = loaded(&["--proxy-mode=ipvs"]).with_mode(Mode::IPVS).unwrap().backend;
        let made = ipvs_config(&settings, PerFamily { v4: true, v6: true });
        settings.ipvs.api_addresses.lock().insert([192, 0, 2, 7].into());
        assert!(made.never_bound.lock().contains(&[192, 0, 2, 7].into()));
    }

    #[test]
    fn userspace_mode_has_what_is_configured() {
        let families = PerFamily { v4: true, v6: false };
        let config = |arguments: &[&str]| {
            let settings = loaded(arguments).with_mode(Mode::USERSPACE).unwrap();
            userspace_config(&settings.backend, families)
        };
        let unnamed = config(&[]);
        assert_eq!((unnamed.capture, unnamed.may_use_loopback), (None, false));
        assert_eq!(unnamed.forwarder, ForwarderConfig::default());
        let found = config(&[
            "--proxy-mode=userspace",
            "--iptables-masquerade-bit=7",
            "--userspace-capture=addresses",
            "--userspace-udp-timeout=3s",
            "--userspace-connections=1000",
        ]);
        assert_eq!((found.capture, found.may_use_loopback), (Some(CaptureMode::Addresses), true));
        assert_eq!((found.families, found.masquerade_bit), (families, 7));
        assert_eq!(found.forwarder.udp_idle, Duration::from_secs(3));
        assert_eq!(found.forwarder.connections, Some(1000));
    }

    #[test]
    fn every_mode_removes_what_all_others_left() {
        let backends = with_defaults();
        for mode in MODES {
            let others: Vec<Mode> = MODES.into_iter().filter(|other| *other != mode).collect();
            let profile = get(&backends, mode).unwrap().profile();
            assert_eq!(modes(&proxier::conflicting(&backends, &profile)), others, "{mode}");
            let beside = Profile { is_beside: true, ..profile };
            assert!(proxier::conflicting(&backends, &beside).is_empty(), "another proxy's");
        }
    }
}
