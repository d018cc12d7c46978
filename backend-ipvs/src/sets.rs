//! The names of IP sets that kube-proxy's ipvs mode leaves.

use switchyard_core::model::IpFamily;

/// The names of the sets of IPv4.
const NAMES: [&str; 17] = [
    "KUBE-LOOP-BACK",
    "KUBE-CLUSTER-IP",
    "KUBE-EXTERNAL-IP",
    "KUBE-EXTERNAL-IP-LOCAL",
    "KUBE-LOAD-BALANCER",
    "KUBE-LOAD-BALANCER-LOCAL",
    "KUBE-LOAD-BALANCER-FW",
    "KUBE-LOAD-BALANCER-SOURCE-CIDR",
    "KUBE-LOAD-BALANCER-SOURCE-IP",
    "KUBE-NODE-PORT-TCP",
    "KUBE-NODE-PORT-UDP",
    "KUBE-NODE-PORT-SCTP-HASH",
    "KUBE-NODE-PORT-LOCAL-TCP",
    "KUBE-NODE-PORT-LOCAL-UDP",
    "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
    "KUBE-HEALTH-CHECK-NODE-PORT",
    "KUBE-IPVS-IPS",
];

/// The names of the sets of both families. Those of IPv6 are cut to what the kernel allows.
pub(crate) fn names() -> impl Iterator<Item = String> {
    NAMES.into_iter().flat_map(|name| IpFamily::ALL.map(|family| of_family(name, family)))
}

fn of_family(name: &str, family: IpFamily) -> String {
    match (family, name.split_once('-')) {
        (IpFamily::V6, Some((prefix, rest))) => {
            let mut name = format!("{prefix}-6-{rest}");
            name.truncate(switchyard_kernel::ipset::LONGEST_NAME);
            name
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_names_are_cut() {
        let v6 = |name| of_family(name, IpFamily::V6);
        assert_eq!(v6("KUBE-IPVS-IPS"), "KUBE-6-IPVS-IPS");
        assert_eq!(v6("KUBE-LOAD-BALANCER-SOURCE-CIDR"), "KUBE-6-LOAD-BALANCER-SOURCE-CID");
    }
}
