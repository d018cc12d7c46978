//! The address plan of the rig and the words of nft, by address family.

use std::net::IpAddr;

use packet_rig::address;
use switchyard_core::model::IpFamily;

/// nft's word for the family.
pub fn nft_family(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ip",
        IpFamily::V6 => "ip6",
    }
}

/// The network of all pods: kube-proxy's `clusterCIDR`.
pub fn cluster_cidr(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "10.244.0.0/16",
        IpFamily::V6 => "fd00:10:244::/48",
    }
}

/// The address of `node-1`.
pub fn node_ip(family: IpFamily) -> IpAddr {
    let node = address::underlay(1);
    match family {
        IpFamily::V4 => node.v4.into(),
        IpFamily::V6 => node.v6.into(),
    }
}
