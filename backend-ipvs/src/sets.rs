//! The names of IP sets that kube-proxy's ipvs mode leaves, and that releases of Switchyard up to
//! 0.1 left.

use switchyard_core::model::IpFamily;

/// The names of the sets of IPv4.
const NAMES: [&str; 19] = [
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
    "SWITCHYARD-SILENT",
    // Takes the place of a set that became too small, and is there if that was interrupted.
    "SWITCHYARD-LARGER",
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
        assert_eq!(v6("SWITCHYARD-SILENT"), "SWITCHYARD-6-SILENT");
        assert!(names().any(|name| name == "SWITCHYARD-6-LARGER"));
    }
}
