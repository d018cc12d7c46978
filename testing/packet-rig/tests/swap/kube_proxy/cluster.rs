//! The objects of the cluster, and what kube-proxy makes of these: recorded, as
//! [`same_rules`](crate::same_rules) compares it with the genuine program.

use switchyard_core::model::IpFamily;

/// The cluster at a time: Services of every kind, whose pods are those of [`packet_rig::Topology`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cluster {
    /// Before the change: with a Service and endpoints that are gone later. There is no UDP traffic
    /// to these endpoints in the meantime: such flows are ended, with the packets on their way.
    Before,
    /// After the change.
    After,
}

/// The recorded file of a cluster and a family.
macro_rules! recorded {
    ($cluster:expr, $family:expr, $what:literal) => {
        match ($cluster, $family) {
            (Cluster::Before, IpFamily::V4) => {
                include_str!(concat!("../recorded/", $what, "-before-ip"))
            }
            (Cluster::Before, IpFamily::V6) => {
                include_str!(concat!("../recorded/", $what, "-before-ip6"))
            }
            (Cluster::After, IpFamily::V4) => {
                include_str!(concat!("../recorded/", $what, "-after-ip"))
            }
            (Cluster::After, IpFamily::V6) => {
                include_str!(concat!("../recorded/", $what, "-after-ip6"))
            }
        }
    };
}

impl Cluster {
    /// The objects, as documents of one YAML file.
    pub fn manifests(self) -> &'static str {
        match self {
            Self::Before => include_str!("../recorded/before.yaml"),
            Self::After => include_str!("../recorded/after.yaml"),
        }
    }

    /// The transaction of a sync in nftables mode, on a node without the table.
    pub fn nftables(self, family: IpFamily) -> &'static str {
        recorded!(self, family, "nftables")
    }

    /// The tables `filter` and `nat` of iptables mode, as they are restored.
    pub fn iptables(self, family: IpFamily) -> &'static str {
        recorded!(self, family, "iptables")
    }

    /// The tables `nat` and `filter` of ipvs mode.
    pub fn ipvs_rules(self, family: IpFamily) -> &'static str {
        recorded!(self, family, "ipvs-rules")
    }

    /// The entries of ipvs mode: lines of the name of a set, as it is for IPv4, and an entry.
    pub fn ipvs_entries(
        self,
        family: IpFamily,
    ) -> impl Iterator<Item = (&'static str, &'static str)> {
        recorded!(self, family, "ipvs-sets").lines().filter_map(|line| line.split_once(' '))
    }

    /// The virtual servers: lines of the protocol, the address (`node` for those of the node), the
    /// port, the seconds of affinity, and the endpoints.
    pub fn ipvs_servers(self, family: IpFamily) -> impl Iterator<Item = Vec<&'static str>> {
        recorded!(self, family, "ipvs-servers").lines().map(|line| line.split(' ').collect())
    }
}
