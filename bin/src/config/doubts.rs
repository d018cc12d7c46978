//! What is allowed but hardly meant: kube-proxy's sanity checks that need no Node.

use proxy_core::{
    config::{LocalPodsConfig, NodePortAddressConfig},
    model::{IpFamily, parse_cidr},
};

use super::{
    settings::{Mode, Settings},
    v1alpha1::KubeProxyConfiguration,
};

/// What the operator should be told.
pub(super) fn about(config: &KubeProxyConfiguration, settings: &Settings) -> Vec<String> {
    let mut doubts = Vec::new();
    let node_ports = node_port_families(settings);
    if node_ports.is_empty() && settings.node.node_port_addresses.is_empty() {
        doubts.push(
            "nodePortAddresses is unset: node ports are served on all of this node's addresses; \
             consider `nodePortAddresses: [primary]`"
                .to_owned(),
        );
    }
    let cluster = cluster_families(settings);
    let both = |families: &[IpFamily]| IpFamily::ALL.iter().all(|f| families.contains(f));
    let excluded: Vec<IpFamily> = match settings.backend.mode {
        Mode::Ipvs => families(config.ipvs.exclude_cidrs.iter()),
        _ => Vec::new(),
    };
    if let [one] = node_ports[..]
        && (both(&cluster) || both(&excluded))
    {
        doubts.push(format!(
            "the cluster has both families, but nodePortAddresses only {one}: node ports of the \
             other family are served on all addresses"
        ));
    }
    let Some(primary) = settings.node.bind_address.as_ref().map(IpFamily::of) else {
        return doubts;
    };
    if !node_ports.is_empty() && !node_ports.contains(&primary) {
        doubts.push(format!("bindAddress is {primary}, but no entry of nodePortAddresses is"));
    }
    if !cluster.is_empty() && !cluster.contains(&primary) {
        doubts.push(format!("bindAddress is {primary}, but clusterCIDR is not"));
    }
    doubts
}

/// The families of the networks in `nodePortAddresses`, each once.
fn node_port_families(settings: &Settings) -> Vec<IpFamily> {
    let mut found: Vec<IpFamily> = Vec::new();
    for entry in &settings.node.node_port_addresses {
        if let NodePortAddressConfig::Cidr(net) = entry {
            found.push(IpFamily::of_net(net));
        }
    }
    once(found)
}

fn cluster_families(settings: &Settings) -> Vec<IpFamily> {
    match &settings.node.local_pods {
        LocalPodsConfig::ClusterCidr(nets) => once(nets.iter().map(IpFamily::of_net).collect()),
        _ => Vec::new(),
    }
}

fn families<'a>(texts: impl Iterator<Item = &'a String>) -> Vec<IpFamily> {
    once(texts.filter_map(|text| Some(IpFamily::of_net(&parse_cidr(text).ok()?))).collect())
}

fn once(mut families: Vec<IpFamily>) -> Vec<IpFamily> {
    families.sort();
    families.dedup();
    families
}
