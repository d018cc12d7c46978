//! The network every case runs in: two nodes with pods, and a client outside the cluster.
//!
//! ```text
//!   pod a   pod b                          pod c   pod d
//!      \     /                                \     /
//!   [ node-1 ]  <- the proxy under test     [ node-2 ]         [ client ]
//!        |                                       |                  |
//!        +--------- underlay (a bridge) ---------+------------------+
//! ```
//!
//! Pods hang on routed veth pairs: a /32 (or /128) route on the node for each, and no address on
//! the node's end, so that masqueraded traffic shows the node's own address. In the layout
//! [`Layout::Bridged`] the pods of `node-1` hang on a bridge `cni0` instead. Service addresses are
//! routed to `node-1` from everywhere, because no proxy runs on `node-2`. Packets to unknown
//! addresses go to a gateway that refuses them with an ICMP error of its own, so that a packet
//! which left the node untouched ([`Outcome::Unrouted`](crate::Outcome::Unrouted)) differs from a
//! dropped one.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

use serde::Deserialize;

use crate::{
    address::{self, Addresses, MORE_CLIENT_ADDRESSES, SERVICE_NETWORKS},
    error::{Result, RigError},
    netns::NetNs,
};

/// The hardware address of the node's end of every pod's link, as neighbours of pods never change.
const GATEWAY_MAC: &str = "ee:ee:ee:ee:ee:ee";

/// The bridge of [`Layout::Bridged`].
const BRIDGE: &str = "cni0";

/// The pods: name, node, index on it.
const PODS: [(&str, u8, u8); 4] = [("a", 1, 0), ("b", 1, 1), ("c", 2, 0), ("d", 2, 1)];

/// Sysctls of every namespace. Redirects would make hosts bypass the node under test; duplicate
/// address detection and ICMP rate limits would make results depend on time.
const COMMON_SYSCTLS: [(&str, &str); 15] = [
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv4/conf/all/accept_redirects", "0"),
    ("ipv4/conf/default/accept_redirects", "0"),
    ("ipv4/icmp_ratelimit", "0"),
    ("ipv6/icmp/ratelimit", "0"),
    ("ipv6/conf/all/accept_redirects", "0"),
    ("ipv6/conf/default/accept_redirects", "0"),
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/dad_transmits", "0"),
    ("ipv6/conf/default/router_solicitations", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
];

/// Sysctls of namespaces that forward, after the common sysctls.
const FORWARDING_SYSCTLS: [(&str, &str); 2] =
    [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")];

/// Sysctls of the bridge's namespace.
const BRIDGE_SYSCTLS: [(&str, &str); 2] =
    [("bridge/bridge-nf-call-iptables", "0"), ("bridge/bridge-nf-call-ip6tables", "0")];

/// The rules of the gateway: it rejects every packet that it should forward.
const GATEWAY_RULES: &str = "\
table inet gateway {
    chain forward {
        type filter hook forward priority 0
        reject with icmpx type admin-prohibited
    }
}
";

/// The way that the pods of `node-1` are connected to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Each pod by a link of its own, `veth-a` and so on, which the node routes to.
    #[default]
    Routed,
    /// All pods on the bridge `cni0`, which has the node's end of their network.
    Bridged,
}

/// A host of the network: a node, a pod or the client.
#[derive(Clone, Debug)]
pub struct Place {
    /// `node-1`, `node-2`, `client`, or the name of a pod.
    pub name: String,
    pub namespace: NetNs,
    /// The addresses of each family; the first is the usual source.
    pub addresses: Vec<Addresses>,
}

impl Place {
    pub fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.of_family(address) == address)
    }
}

/// The whole network of a case. Dropping it, and every clone, removes everything.
#[derive(Clone, Debug)]
pub struct Topology {
    places: Vec<Place>,
    underlay: NetNs,
}

impl Topology {
    /// The node that the proxy under test runs on.
    pub const NODE: &str = "node-1";
    pub const OTHER_NODE: &str = "node-2";
    /// The host outside the cluster.
    pub const CLIENT: &str = "client";

    /// Builds the network, with pods `a` and `b` on `node-1`, `c` and `d` on `node-2`.
    pub fn new() -> Result<Self> {
        Self::with_layout(Layout::Routed)
    }

    /// Builds the same network with the pods of `node-1` connected in this way.
    pub fn with_layout(layout: Layout) -> Result<Self> {
        Self::with_pods(layout, &PODS)
    }

    /// Builds the network with other pods: name, node, index on it.
    pub fn with_pods(layout: Layout, pods: &[(&str, u8, u8)]) -> Result<Self> {
        let underlay = make_namespace(&FORWARDING_SYSCTLS)?;
        // Where the kernel shows bridged packets to the rules of routed ones, the gateway would
        // refuse them too. The settings exist only where it does that.
        let _ = underlay.sysctl(&BRIDGE_SYSCTLS);
        let mut places = vec![
            host(Self::NODE, &[1, 11], &FORWARDING_SYSCTLS)?,
            host(Self::OTHER_NODE, &[2], &FORWARDING_SYSCTLS)?,
            host(Self::CLIENT, &client_hosts(), &[])?,
        ];
        underlay.ip(&underlay_commands(&places))?;
        underlay.nft(GATEWAY_RULES)?;
        for (name, node, index) in pods {
            let addresses = vec![address::pod(*node, *index)];
            places.push(Place {
                name: (*name).to_owned(),
                namespace: make_namespace(&[])?,
                addresses,
            });
        }
        let topology = Self { places, underlay };
        topology.configure_hosts()?;
        topology.configure_pods(layout)?;
        Ok(topology)
    }

    /// Lets commands on the node under test find programs in `directory` first.
    pub(crate) fn add_programs_to_node(&mut self, directory: &Path) {
        self.places[0].namespace.add_programs(directory);
    }

    pub fn place(&self, name: &str) -> Result<&Place> {
        let found = self.places.iter().find(|place| place.name == name);
        found.ok_or_else(|| RigError::Setup(format!("there is no place {name}")))
    }

    /// Every place: nodes, client, pods.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    pub fn pods(&self) -> impl Iterator<Item = &Place> {
        self.places[3..].iter()
    }

    /// The node that the proxy under test runs on.
    pub fn node(&self) -> &Place {
        &self.places[0]
    }

    pub fn other_node(&self) -> &Place {
        &self.places[1]
    }

    pub fn client(&self) -> &Place {
        &self.places[2]
    }

    /// The place that has this address.
    pub fn owner(&self, address: SocketAddr) -> Option<&Place> {
        self.places.iter().find(|place| place.has(address.ip()))
    }

    /// Shell commands that look into each namespace while this process lives.
    pub fn nsenter_commands(&self) -> String {
        let line = |place: &Place| {
            format!("nsenter --net={}  # {}\n", place.namespace.path().display(), place.name)
        };
        self.places.iter().map(line).collect()
    }

    fn configure_hosts(&self) -> Result<()> {
        let via_node = self.node().addresses[0];
        let via_other = self.other_node().addresses[0];
        let routes_to = |networks: &[&str], via: Addresses| -> String {
            networks
                .iter()
                .map(|network| match network.contains(':') {
                    true => format!("route add {network} via {}\n", via.v6),
                    false => format!("route add {network} via {}\n", via.v4),
                })
                .collect()
        };
        let to_services = routes_to(&SERVICE_NETWORKS, via_node);
        let to_pods_1 = routes_to(&["10.244.1.0/24", "fd00:10:244:1::/64"], via_node);
        let to_pods_2 = routes_to(&["10.244.2.0/24", "fd00:10:244:2::/64"], via_other);
        self.underlay.ip(&(to_pods_1.clone() + &to_pods_2))?;
        for (place, routes) in [
            (self.node(), to_pods_2),
            (self.other_node(), to_pods_1 + &to_services),
            (self.client(), to_services),
        ] {
            place.namespace.ip(&(host_commands(place) + &routes))?;
        }
        Ok(())
    }

    fn configure_pods(&self, layout: Layout) -> Result<()> {
        for (number, node, layout) in
            [(1, self.node(), layout), (2, self.other_node(), Layout::Routed)]
        {
            let is_here = |pod: &&Place| pod.addresses[0].v4.octets()[2] == number;
            let pods: Vec<&Place> = self.pods().filter(is_here).collect();
            let mut commands = String::new();
            if layout == Layout::Bridged {
                // Bridged packets must not pass the proxy's rules. The settings exist only where
                // the kernel can make them do so.
                let _ = node.namespace.sysctl(&BRIDGE_SYSCTLS);
                commands += &format!(
                    "link add {BRIDGE} address {GATEWAY_MAC} type bridge \
                         forward_delay 0 mcast_snooping 0\n\
                     link set {BRIDGE} up\n"
                );
            }
            commands.extend(pods.iter().map(|pod| node_side_commands(pod, layout)));
            node.namespace.ip(&commands)?;
            for pod in pods {
                pod.namespace.ip(&pod_side_commands(pod))?;
            }
        }
        Ok(())
    }
}

/// The host parts of the client's addresses.
fn client_hosts() -> Vec<u8> {
    (100..=100 + MORE_CLIENT_ADDRESSES).collect()
}

fn host(name: &str, hosts: &[u8], sysctls: &[(&str, &str)]) -> Result<Place> {
    let addresses = hosts.iter().map(|host| address::underlay(*host)).collect();
    Ok(Place { name: name.to_owned(), namespace: make_namespace(sysctls)?, addresses })
}

fn make_namespace(sysctls: &[(&str, &str)]) -> Result<NetNs> {
    let namespace = NetNs::new_bare()?;
    namespace.sysctl(&[&COMMON_SYSCTLS[..], sysctls].concat())?;
    // The limit on all ICMP together: kernels before 6.13 have one limit for the whole host, which
    // a namespace cannot change, and which cases hardly reach.
    let _ = namespace.sysctl(&[("ipv4/icmp_msgs_burst", "10000")]);
    Ok(namespace)
}

fn underlay_commands(hosts: &[Place]) -> String {
    let gateway = address::underlay(254);
    let mut commands = format!(
        "link set lo up\n\
         link add br0 type bridge forward_delay 0 mcast_snooping 0\n\
         link set br0 up\n\
         addr add {}/24 dev br0\n\
         addr add {}/64 dev br0 nodad\n\
         route add default dev br0\n\
         route add ::/0 dev br0\n",
        gateway.v4, gateway.v6
    );
    for host in hosts {
        commands += &format!(
            "link add port-{name} type veth peer name eth0 netns {path}\n\
             link set port-{name} master br0 up\n",
            name = host.name,
            path = host.namespace.path().display(),
        );
    }
    commands
}

fn host_commands(host: &Place) -> String {
    let gateway = address::underlay(254);
    let mut commands = "link set lo up\nlink set eth0 up\n".to_owned();
    for (index, own) in host.addresses.iter().enumerate() {
        // A second IPv6 address is deprecated from the start: usable, but never chosen as a source.
        let preferred = if index == 0 { "forever" } else { "0" };
        commands += &format!(
            "addr add {}/24 dev eth0\n\
             addr add {}/64 dev eth0 nodad preferred_lft {preferred}\n",
            own.v4, own.v6
        );
    }
    commands += &format!("route add default via {}\n", gateway.v4);
    commands += &format!("route add default via {}\n", gateway.v6);
    commands
}

/// The hardware address of a pod's end of its link.
fn pod_mac(pod: &Place) -> String {
    let [_, second, node, host] = pod.addresses[0].v4.octets();
    format!("02:00:00:{second:02x}:{node:02x}:{host:02x}")
}

fn node_side_commands(pod: &Place, layout: Layout) -> String {
    let Addresses { v4, v6 } = pod.addresses[0];
    let mac = pod_mac(pod);
    let link = format!("veth-{}", pod.name);
    // A bridge has the address that pods send to; its ports must not have it, too.
    let (device, own_mac, enslave) = match layout {
        Layout::Routed => (link.as_str(), format!("address {GATEWAY_MAC}"), String::new()),
        Layout::Bridged => (BRIDGE, String::new(), format!("link set {link} master {BRIDGE}\n")),
    };
    format!(
        "link add {link} {own_mac} type veth peer name eth0 address {mac} netns {path}\n\
         {enslave}\
         link set {link} up\n\
         route add {v4}/32 dev {device}\n\
         route add {v6}/128 dev {device}\n\
         neigh add {v4} lladdr {mac} dev {device} nud permanent\n\
         neigh add {v6} lladdr {mac} dev {device} nud permanent\n",
        path = pod.namespace.path().display(),
    )
}

fn pod_side_commands(pod: &Place) -> String {
    let Addresses { v4, v6 } = pod.addresses[0];
    format!(
        "link set lo up\n\
         link set eth0 up\n\
         addr add {v4}/32 dev eth0\n\
         addr add {v6}/128 dev eth0 nodad\n\
         neigh add 169.254.1.1 lladdr {GATEWAY_MAC} dev eth0 nud permanent\n\
         neigh add fe80::1 lladdr {GATEWAY_MAC} dev eth0 nud permanent\n\
         route add 169.254.1.1 dev eth0 scope link\n\
         route add default via 169.254.1.1 dev eth0\n\
         route add default via fe80::1 dev eth0\n"
    )
}
