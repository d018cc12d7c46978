//! `/configz`: the configuration in effect.

use serde_json::{Value, json};

use crate::config::{
    duration::GoDuration,
    settings::Mode,
    v1alpha1::{KubeProxyConfiguration, Nftables},
};

/// The configuration with the choices that were left to us filled in. The periods of modes that are
/// not active are 0, as kube-proxy shows them.
pub fn effective(config: &KubeProxyConfiguration, mode: Mode) -> KubeProxyConfiguration {
    let mut shown = config.clone();
    if mode == Mode::Nftables && config.mode != mode.as_str() {
        // Then the section of iptables is what counts.
        let section = &config.iptables;
        shown.nftables = Nftables {
            masquerade_bit: section.masquerade_bit,
            masquerade_all: section.masquerade_all,
            sync_period: section.sync_period,
            min_sync_period: section.min_sync_period,
        };
    }
    shown.mode = mode.as_str().to_owned();
    if shown.detect_local_mode.is_empty() {
        shown.detect_local_mode = "ClusterCIDR".to_owned();
    }
    let (iptables, ipvs, nftables) = (&mut shown.iptables, &mut shown.ipvs, &mut shown.nftables);
    let all = [
        (Mode::Nftables, &mut nftables.sync_period, &mut nftables.min_sync_period),
        (Mode::Ipvs, &mut ipvs.sync_period, &mut ipvs.min_sync_period),
        (Mode::Iptables, &mut iptables.sync_period, &mut iptables.min_sync_period),
    ];
    // The userspace mode has no section of its own.
    let active = if mode == Mode::Userspace { Mode::Iptables } else { mode };
    for (_, sync, min_sync) in all.into_iter().filter(|(of, ..)| *of != active) {
        *sync = GoDuration::ZERO;
        *min_sync = GoDuration::ZERO;
    }
    shown
}

/// What `/configz` answers with.
pub fn body(effective: &KubeProxyConfiguration) -> Value {
    json!({"kubeproxy.config.k8s.io": effective})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> KubeProxyConfiguration {
        let mut config = KubeProxyConfiguration::default();
        config.apply_defaults();
        config
    }

    fn periods(mode: &str, active: Mode) -> [String; 6] {
        let mut config = KubeProxyConfiguration { mode: mode.to_owned(), ..defaults() };
        config.iptables.sync_period = GoDuration::from_secs(7);
        let shown = body(&effective(&config, active));
        let shown = &shown["kubeproxy.config.k8s.io"];
        assert_eq!(shown["mode"], active.as_str());
        assert_eq!(shown["kind"], "KubeProxyConfiguration");
        assert_eq!(shown["detectLocalMode"], "ClusterCIDR");
        let text = |section: &str, field: &str| shown[section][field].as_str().unwrap().to_owned();
        let of = |section: &str| [text(section, "syncPeriod"), text(section, "minSyncPeriod")];
        [of("iptables"), of("ipvs"), of("nftables")].concat().try_into().unwrap()
    }

    #[test]
    fn only_the_active_mode_has_periods() {
        let zero = "0s";
        let found = periods("nftables", Mode::Nftables);
        assert_eq!(found, [zero, zero, zero, zero, "30s", "1s"]);
        let found = periods("iptables", Mode::Iptables);
        assert_eq!(found, ["7s", "1s", zero, zero, zero, zero]);
        let found = periods("userspace", Mode::Userspace);
        assert_eq!(found, ["7s", "1s", zero, zero, zero, zero]);
        let found = periods("ipvs", Mode::Ipvs);
        assert_eq!(found, [zero, zero, "30s", "0s", zero, zero]);
        // Our choice: what is said of iptables counts.
        let found = periods("", Mode::Nftables);
        assert_eq!(found, [zero, zero, zero, zero, "7s", "1s"]);
    }
}
