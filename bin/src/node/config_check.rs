//! kube-proxy's checks of a configuration against the families that the node and its cluster have:
//! doubts about what is allowed but hardly meant, and reasons why a configuration cannot work.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use switchyard_core::{
    config::{LocalPodsConfig, NodePortAddressConfig},
    model::{IpFamily, PerFamily, parse_cidr, parse_ip},
    proxier::Mode,
    track::NodeFacts,
};

use crate::{
    config::{
        settings::{BackendSettings, Settings},
        v1alpha1::KubeProxyConfiguration,
    },
    process,
};

/// The fields of the configuration that are checked, and the families that the node supports.
#[derive(Clone, Debug)]
pub struct NodeConfigCheck {
    bind_address: Option<IpAddr>,
    node_port_addresses: Vec<NodePortAddressConfig>,
    /// Whether Services are served at loopback addresses alone.
    is_at_loopback: bool,
    cluster_cidrs: Vec<IpNet>,
    exclude_cidrs: Vec<IpNet>,
    source_vip: Option<IpAddr>,
    healthz: Option<SocketAddr>,
    metrics: SocketAddr,
    local_pods: LocalPodsConfig,
    supported: PerFamily<bool>,
}

/// The result of the checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Texts about a configuration that works, but hardly as meant.
    pub doubts: Vec<String>,
    /// Why the configuration cannot work; `None` if it can.
    pub fatal: Option<NodeConfigError>,
}

/// Why a configuration cannot work on this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeConfigError {
    #[error("no support for primary IP family {:?}", .0.as_str())]
    Unsupported(IpFamily),
    /// A field has nothing of the node's own family.
    #[error("kube-proxy configuration is incorrect: {0}")]
    Incorrect(String),
}

impl NodeConfigCheck {
    /// Creates the checks of this configuration, on a node that can program the families in
    /// `supported`.
    pub fn new(
        config: &KubeProxyConfiguration,
        settings: &Settings,
        supported: PerFamily<bool>,
    ) -> Self {
        // Values that cannot be parsed were rejected before, where they matter.
        let nets = |texts: &mut dyn Iterator<Item = &str>| -> Vec<IpNet> {
            texts.map(parse_cidr).collect::<Result<_, _>>().unwrap_or_default()
        };
        Self {
            bind_address: settings.node.bind_address,
            node_port_addresses: settings.node.node_port_addresses.clone(),
            is_at_loopback: is_at_loopback(&settings.backend),
            cluster_cidrs: nets(&mut config.cluster_cidr.split(',')),
            exclude_cidrs: nets(&mut config.ipvs.exclude_cidrs.iter().map(String::as_str)),
            source_vip: parse_ip(&config.winkernel.source_vip).ok(),
            healthz: settings.servers.healthz,
            metrics: settings.servers.metrics,
            local_pods: settings.node.local_pods.clone(),
            supported,
        }
    }

    /// Checks the configuration against the Node.
    pub fn judge(&self, facts: &NodeFacts) -> Verdict {
        let primary = facts.primary_family(self.bind_address);
        let mut doubts: Vec<String> = self.node_ports(primary, facts).into_iter().collect();
        if !self.supported.get(primary) {
            return Verdict { doubts, fatal: Some(NodeConfigError::Unsupported(primary)) };
        }
        let (wrong, fatal) = self.families(primary, facts);
        if fatal {
            return Verdict { doubts, fatal: Some(NodeConfigError::Incorrect(wrong.join("; "))) };
        }
        doubts.extend(wrong);
        Verdict { doubts, fatal: None }
    }

    /// Returns a doubt if node ports are served on more addresses than `nodePortAddresses`
    /// suggests.
    fn node_ports(&self, primary: IpFamily, facts: &NodeFacts) -> Option<String> {
        let entries = self.expanded(facts);
        if entries.is_empty() {
            if self.is_at_loopback {
                return None;
            }
            let (is_so, remedy) = if self.node_port_addresses.is_empty() {
                ("is unset", "; consider nodePortAddresses: [primary]")
            } else {
                ("is primary, and the node's addresses are not known", "")
            };
            return Some(format!(
                "nodePortAddresses {is_so}: node ports are served on all of this node's \
                 addresses{remedy}"
            ));
        }
        let other = other(primary);
        let of_primary = entries.iter().filter(|net| IpFamily::of_net(net) == primary).count();
        let is_dual = [&self.cluster_cidrs, &entries, &self.exclude_cidrs, &facts.pod_cidrs]
            .into_iter()
            .any(|nets| is_dual_stack(nets));
        if is_dual && of_primary == entries.len() {
            return Some(format!(
                "the cluster appears to have both families, but nodePortAddresses only {primary}: \
                 node ports are served on all {other} addresses of this node"
            ));
        }
        (of_primary == 0).then(|| {
            format!(
                "the node's primary family is {primary}, but nodePortAddresses has only {other}: \
                 node ports are served on all {primary} addresses of this node"
            )
        })
    }

    /// Returns `nodePortAddresses`, with addresses in place of the words. Beside `primary`,
    /// `localhost` does not narrow a family.
    fn expanded(&self, facts: &NodeFacts) -> Vec<IpNet> {
        let has_primary = self.node_port_addresses.contains(&NodePortAddressConfig::Primary);
        let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let expand = |entry: &NodePortAddressConfig| match entry {
            NodePortAddressConfig::Cidr(net) => vec![*net],
            NodePortAddressConfig::Localhost if has_primary => Vec::new(),
            NodePortAddressConfig::Localhost => loopback.map(IpNet::from).into(),
            NodePortAddressConfig::Primary => {
                let ips = IpFamily::ALL.map(|family| facts.ip(self.bind_address, family));
                ips.into_iter().flatten().filter(|ip| !ip.is_loopback()).map(IpNet::from).collect()
            }
        };
        self.node_port_addresses.iter().flat_map(expand).collect()
    }

    /// Returns a text for each field that has only the family that is not the node's own, and
    /// whether one of these fields makes it impossible to detect local traffic.
    fn families(&self, primary: IpFamily, facts: &NodeFacts) -> (Vec<String>, bool) {
        let bad = other(primary);
        let is_dual = IpFamily::ALL.iter().all(|family| *self.supported.get(*family));
        let cluster = if is_dual { "primary family is" } else { "only family is" };
        let mut wrong = Vec::new();
        let mut fatal = false;
        let mut found = |field: &str| {
            wrong.push(format!("the node's {cluster} {primary}, but {field} is {bad}"));
        };
        if all_of(&self.cluster_cidrs, bad) {
            found("clusterCIDR");
            fatal |= !is_dual && matches!(self.local_pods, LocalPodsConfig::ClusterCidr(_));
        }
        if all_of(&facts.pod_cidrs, bad) {
            found("spec.podCIDRs of the Node");
            fatal |= self.local_pods == LocalPodsConfig::NodeCidr;
        }
        if self.source_vip.is_some_and(|ip| IpFamily::of(&ip) == bad) {
            found("winkernel.sourceVip");
        }
        if !is_dual {
            if all_of(&self.exclude_cidrs, bad) {
                found("ipvs.excludeCIDRs");
            }
            let is_bad =
                |at: SocketAddr| IpFamily::of(&at.ip()) == bad && !at.ip().is_unspecified();
            if self.healthz.is_some_and(is_bad) {
                found("healthzBindAddress");
            }
            if is_bad(self.metrics) {
                found("metricsBindAddress");
            }
        }
        (wrong, fatal)
    }
}

/// Whether userspace mode captures traffic at loopback addresses, as it is named or as without
/// CAP_NET_ADMIN there is no other way.
fn is_at_loopback(BackendSettings { mode, userspace, .. }: &BackendSettings) -> bool {
    let named = userspace.capture.as_deref();
    *mode == Mode::USERSPACE
        && named.map_or_else(|| !process::may_administer_networks(), |name| name == "loopback")
}

fn other(family: IpFamily) -> IpFamily {
    match family {
        IpFamily::V4 => IpFamily::V6,
        IpFamily::V6 => IpFamily::V4,
    }
}

fn is_dual_stack(nets: &[IpNet]) -> bool {
    let has = |family| nets.iter().any(|net| IpFamily::of_net(net) == family);
    IpFamily::ALL.into_iter().all(has)
}

/// Whether there are networks, and all are of this family.
fn all_of(nets: &[IpNet], family: IpFamily) -> bool {
    !nets.is_empty() && nets.iter().all(|net| IpFamily::of_net(net) == family)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::loaded;

    const BOTH: PerFamily<bool> = PerFamily { v4: true, v6: true };
    const V4: PerFamily<bool> = PerFamily { v4: true, v6: false };

    fn judge(
        arguments: &[&str],
        ips: &[&str],
        pod_cidrs: &[&str],
        can: PerFamily<bool>,
    ) -> Verdict {
        let loaded = loaded(&[&["--proxy-mode=nftables"], arguments].concat());
        let mut facts = NodeFacts::default();
        facts.addresses = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        facts.pod_cidrs = pod_cidrs.iter().map(|net| net.parse().unwrap()).collect();
        NodeConfigCheck::new(&loaded.config, &loaded.settings, can).judge(&facts)
    }

    /// The only doubt.
    #[track_caller]
    fn doubt(arguments: &[&str], ips: &[&str], can: PerFamily<bool>) -> String {
        let Verdict { doubts, fatal } = judge(arguments, ips, &[], can);
        assert_eq!(fatal, None);
        let [doubt] = &doubts[..] else { panic!("{doubts:?}") };
        doubt.clone()
    }

    #[track_caller]
    fn fatal(arguments: &[&str], ips: &[&str], pods: &[&str], can: PerFamily<bool>) -> String {
        judge(arguments, ips, pods, can).fatal.expect("it goes on").to_string()
    }

    #[test]
    fn what_fits_raises_no_doubts() {
        for (arguments, ips, pods) in [
            (&[][..], &["10.0.0.1"][..], &[][..]),
            (&[], &["10.0.0.1", "fd00::1"], &["10.1.0.0/24", "fd01::/64"]),
            (&["--cluster-cidr=10.1.0.0/16"], &["10.0.0.1"], &["10.1.0.0/24"]),
            (&["--cluster-cidr=fd01::/56"], &["fd00::1"], &[]),
            (&["--metrics-bind-address=[::1]:1", "--healthz-bind-address=::1"], &["10.0.0.1"], &[]),
            (&["--nodeport-addresses=primary,localhost"], &["10.0.0.1"], &[]),
            (&["--nodeport-addresses=localhost"], &["10.0.0.1"], &[]),
            (&["--proxy-mode=userspace", "--userspace-capture=loopback"], &["10.0.0.1"], &[]),
            (
                &[
                    "--nodeport-addresses=10.0.0.0/8,fd00::/8",
                    "--cluster-cidr=10.1.0.0/16,fd01::/56",
                ],
                &["fd00::1"],
                &[],
            ),
        ] {
            let verdict = judge(arguments, ips, pods, BOTH);
            assert_eq!(verdict, Verdict { doubts: vec![], fatal: None }, "{arguments:?}");
        }
        // All zeros are of no family.
        let zeros = ["--metrics-bind-address=[::]:1", "--healthz-bind-address=[::]:2"];
        assert_eq!(judge(&zeros, &["10.0.0.1"], &[], V4).doubts, [""; 0]);
    }

    #[test]
    fn node_ports_may_be_wider_than_meant() {
        let unset = doubt(&["--proxy-mode=iptables"], &["10.0.0.1"], BOTH);
        assert!(unset.starts_with("nodePortAddresses is unset"), "{unset}");
        let unknown = doubt(&[], &[], BOTH);
        assert!(unknown.starts_with("nodePortAddresses is primary, and the node's"), "{unknown}");

        let dual = "--cluster-cidr=10.1.0.0/16,fd01::/56";
        let one = "the cluster appears to have both families, but nodePortAddresses only IPv4";
        for arguments in [
            &[dual, "--nodeport-addresses=10.0.0.0/8"][..],
            &[dual],
            &["--ipvs-exclude-cidrs=10.0.0.0/8,fd00::/8"],
        ] {
            let found = doubt(arguments, &["10.0.0.1"], BOTH);
            assert!(found.starts_with(one), "{arguments:?}: {found}");
        }
        let pods = judge(&[], &["10.0.0.1"], &["10.1.0.0/24", "fd01::/64"], BOTH);
        assert!(pods.doubts[0].starts_with(one), "{pods:?}");

        let found = doubt(&["--nodeport-addresses=fd00::/8"], &["10.0.0.1"], BOTH);
        assert!(found.starts_with("the node's primary family is IPv4, but nodePort"), "{found}");
    }

    #[test]
    fn fields_of_the_other_family_are_doubted() {
        let found = doubt(&["--cluster-cidr=fd01::/56"], &["10.0.0.1"], BOTH);
        assert_eq!(found, "the node's primary family is IPv4, but clusterCIDR is IPv6");
        // Pods are told by something else.
        let bridge = ["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=br0"];
        let found = doubt(&[bridge[0], bridge[1], "--cluster-cidr=fd01::/56"], &["10.0.0.1"], V4);
        assert_eq!(found, "the node's only family is IPv4, but clusterCIDR is IPv6");
        let pods = judge(&[], &["10.0.0.1"], &["fd01::/64"], BOTH);
        assert_eq!(pods.fatal, None);
        assert!(pods.doubts[0].contains("spec.podCIDRs of the Node is IPv6"), "{pods:?}");
        for (argument, field) in [
            ("--ipvs-exclude-cidrs=fd00::/8", "ipvs.excludeCIDRs"),
            ("--healthz-bind-address=[::1]:1", "healthzBindAddress"),
            ("--metrics-bind-address=::1", "metricsBindAddress"),
        ] {
            let found = doubt(&[argument], &["10.0.0.1"], V4);
            assert_eq!(found, format!("the node's only family is IPv4, but {field} is IPv6"));
            assert_eq!(judge(&[argument], &["10.0.0.1"], &[], BOTH).doubts, [""; 0], "{argument}");
        }
    }

    #[test]
    fn what_cannot_work_is_fatal() {
        let incorrect = "kube-proxy configuration is incorrect: the node's";
        assert_eq!(
            fatal(&["--cluster-cidr=fd01::/56"], &["10.0.0.1"], &[], V4),
            format!("{incorrect} only family is IPv4, but clusterCIDR is IPv6")
        );
        assert_eq!(
            fatal(&["--detect-local-mode=NodeCIDR"], &["10.0.0.1"], &["fd01::/64"], BOTH),
            format!("{incorrect} primary family is IPv4, but spec.podCIDRs of the Node is IPv6")
        );
        let unsupported = "no support for primary IP family \"IPv6\"";
        assert_eq!(fatal(&[], &["fd00::1", "10.0.0.1"], &[], V4), unsupported);
        assert_eq!(fatal(&["--bind-address=fd00::1"], &["10.0.0.1"], &[], V4), unsupported);
    }
}
