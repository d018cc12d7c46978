//! `/configz`: the configuration in effect.

use serde_json::{Value, json};
use switchyard_core::proxier::Mode;

use crate::config::{
    duration::GoDuration,
    v1alpha1::{KubeProxyConfiguration, Nftables},
    write::omit_empty,
};

/// Returns the configuration with every choice of the program filled in. As with kube-proxy, the
/// periods of inactive modes are 0.
pub fn effective(config: &KubeProxyConfiguration, mode: Mode) -> KubeProxyConfiguration {
    let mut shown = config.clone();
    if mode == Mode::NFTABLES && config.mode != mode.as_str() {
        // Without a configured mode, the section of iptables counts.
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
        (Mode::NFTABLES, &mut nftables.sync_period, &mut nftables.min_sync_period),
        (Mode::IPVS, &mut ipvs.sync_period, &mut ipvs.min_sync_period),
        (Mode::IPTABLES, &mut iptables.sync_period, &mut iptables.min_sync_period),
    ];
    // The userspace mode uses the section of iptables.
    let active = if mode == Mode::USERSPACE { Mode::IPTABLES } else { mode };
    for (_, sync, min_sync) in all.into_iter().filter(|(of, ..)| *of != active) {
        *sync = GoDuration::ZERO;
        *min_sync = GoDuration::ZERO;
    }
    shown
}

/// Returns the body of `/configz`.
pub fn body(effective: &KubeProxyConfiguration) -> Value {
    let mut body = json!({"kubeproxy.config.k8s.io": effective});
    omit_empty(&mut body["kubeproxy.config.k8s.io"]);
    body
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
        assert_eq!(shown["nodePortAddresses"], Value::Null);
        assert_eq!(shown.get("featureGates"), None);
        let text = |section: &str, field: &str| shown[section][field].as_str().unwrap().to_owned();
        let of = |section: &str| [text(section, "syncPeriod"), text(section, "minSyncPeriod")];
        [of("iptables"), of("ipvs"), of("nftables")].concat().try_into().unwrap()
    }

    #[test]
    fn only_the_active_mode_has_periods() {
        let zero = "0s";
        let found = periods("nftables", Mode::NFTABLES);
        assert_eq!(found, [zero, zero, zero, zero, "30s", "1s"]);
        let found = periods("iptables", Mode::IPTABLES);
        assert_eq!(found, ["7s", "1s", zero, zero, zero, zero]);
        let found = periods("userspace", Mode::USERSPACE);
        assert_eq!(found, ["7s", "1s", zero, zero, zero, zero]);
        let found = periods("ipvs", Mode::IPVS);
        assert_eq!(found, [zero, zero, "30s", "0s", zero, zero]);
        // Without a configured mode, the section of iptables counts.
        let found = periods("", Mode::NFTABLES);
        assert_eq!(found, [zero, zero, zero, zero, "7s", "1s"]);
    }
}
