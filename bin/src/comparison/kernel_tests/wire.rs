//! Packets that are sent through the kernel have the fates that the walk of the model has.
//!
//! The node's interfaces end in this test, which sees what goes out as soon as a packet came in.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
};

use proptest::test_runner::TestRunner;
use socket2::{Domain, Protocol as SocketProtocol, Socket, Type};
use switchyard_core::{
    model::{LbAlgorithm, Protocol},
    state::State,
    testing::{arbitrary_config, arbitrary_events, proptest_config},
};
use switchyard_kernel::nftables::{
    netlink::NetlinkTransport,
    testing::{Commit, Fate, Packet, Ruleset},
};
use switchyard_nft::NftConfig;
use test_netns::{Tun, in_namespace, run};

use super::{
    damage::{NUMBERS, damaged, packets},
    local_addresses, replace, sample, tracker,
};

/// The length of a UDP header, and of a TCP header without options.
const HEADERS: [usize; 2] = [8, 20];
/// The most packets to no endpoint that are sent through one state of the tables.
const MOST: usize = 30;

/// The outcome of a packet, as far as it shows.
#[derive(Debug, PartialEq)]
pub enum Seen {
    Out { to: SocketAddr, source: IpAddr },
    Answered,
    Nothing,
}

/// The node's interfaces.
pub struct Wire {
    interfaces: [(&'static str, Tun); 3],
    raw: [Socket; 2],
    port: u16,
}

impl Wire {
    /// Makes the interfaces, with the node's addresses and a route to everywhere.
    pub fn new() -> io::Result<Self> {
        for (name, value) in [
            ("ipv4/ip_forward", "1"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
            ("ipv4/icmp_ratelimit", "0"),
            ("ipv6/conf/all/forwarding", "1"),
            // No packets of the node's own.
            ("ipv6/conf/default/addr_gen_mode", "1"),
            ("ipv6/icmp/ratelimit", "0"),
        ] {
            fs::write(format!("/proc/sys/net/{name}"), value)?;
        }
        // Of the machine, in some kernels.
        let _ = fs::write("/proc/sys/net/ipv4/icmp_msgs_per_sec", "1000000");
        let _ = fs::write("/proc/sys/net/ipv4/icmp_msgs_burst", "1000000");
        let names = ["eth0", "veth1", "cni0"];
        let [first, second, third] = names.map(Tun::open);
        let interfaces = [("eth0", first?), ("veth1", second?), ("cni0", third?)];
        run("ip link set lo up");
        for name in names {
            run(&format!("ip link set {name} up"));
        }
        for ip in local_addresses().into_iter().filter(|ip| !ip.is_loopback()) {
            run(&format!("ip addr add {ip} dev eth0"));
        }
        run("ip route add default dev eth0");
        run("ip -6 route add default dev eth0");
        let raw = |domain| Socket::new(domain, Type::RAW, Some(SocketProtocol::from(255)));
        let raw = [raw(Domain::IPV4)?, raw(Domain::IPV6)?];
        Ok(Self { interfaces, raw, port: 1024 })
    }

    /// Sends a packet, from a port of its own, and returns what becomes of it.
    pub fn send(&mut self, packet: &mut Packet) -> Seen {
        self.port = self.port.checked_add(1).expect("a port for each packet");
        packet.source.set_port(self.port);
        let bytes = encoded(packet);
        match packet.interface {
            Some(name) => {
                let of_name = self.interfaces.iter().find(|(of, _)| *of == name);
                of_name.expect("an interface").1.receive(&bytes).expect("it is up");
            }
            None => {
                let raw = &self.raw[usize::from(packet.destination.is_ipv6())];
                let to = SocketAddr::new(packet.destination.ip(), 0);
                match raw.send_to(&bytes, &to.into()) {
                    Err(error) if error.kind() != ErrorKind::PermissionDenied => {
                        panic!("{packet:?}: {error}")
                    }
                    _ => {}
                }
            }
        }
        let sent = self.interfaces.iter().flat_map(|(_, end)| std::iter::from_fn(|| end.sent()));
        let mut seen: Vec<Seen> = sent.filter_map(|bytes| decoded(&bytes)).collect();
        assert!(seen.len() <= 1, "{packet:?} {seen:?}");
        seen.pop().unwrap_or(Seen::Nothing)
    }
}

/// A packet as bytes, with the checksums that connection tracking looks at.
fn encoded(packet: &Packet) -> Vec<u8> {
    let Packet { protocol, source, destination, .. } = packet;
    let length = HEADERS[usize::from(*protocol == Protocol::Tcp)];
    let mut transport = vec![0; length];
    transport[..2].copy_from_slice(&source.port().to_be_bytes());
    transport[2..4].copy_from_slice(&destination.port().to_be_bytes());
    let at = match protocol {
        Protocol::Tcp => {
            // Five words of header, SYN, a window.
            (transport[12], transport[13], transport[14]) = (5 << 4, 2, 0x10);
            16
        }
        _ => {
            transport[5] = length as u8;
            6
        }
    };
    let addresses = [octets(source.ip()), octets(destination.ip())].concat();
    let pseudo = [&addresses[..], &[0, protocol.number(), 0, length as u8], &transport].concat();
    transport[at..at + 2].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    let mut header = match source {
        SocketAddr::V4(_) => {
            vec![0x45, 0, 0, 20 + length as u8, 0, 1, 0, 0, 64, protocol.number(), 0, 0]
        }
        SocketAddr::V6(_) => vec![0x60, 0, 0, 0, 0, length as u8, protocol.number(), 64],
    };
    header.extend(addresses);
    if source.is_ipv4() {
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    [header, transport].concat()
}

/// The checksum of IP (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Returns what a packet that goes out shows; `None` for one to a group, which is the kernel's own.
fn decoded(bytes: &[u8]) -> Option<Seen> {
    let (protocol, source, to, at): (u8, IpAddr, IpAddr, usize) = match bytes[0] >> 4 {
        4 => {
            let ip = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).expect("four bytes");
            (bytes[9], ip(12).into(), ip(16).into(), 4 * usize::from(bytes[0] & 15))
        }
        _ => {
            let ip = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).expect("16 bytes");
            (bytes[6], ip(8).into(), ip(24).into(), 40)
        }
    };
    // ICMP and ICMPv6, and the RST flag of TCP.
    let is_answer = matches!(protocol, 1 | 58) || protocol == 6 && bytes[at + 13] & 4 != 0;
    let port = u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]);
    match is_answer {
        _ if to.is_multicast() => None,
        true => Some(Seen::Answered),
        false => Some(Seen::Out { to: SocketAddr::new(to, port), source }),
    }
}

/// Whether a fate shows like this.
fn shows(fate: &Fate, seen: &Seen, packet: &Packet, local: &BTreeSet<IpAddr>) -> bool {
    let is_from_node = packet.interface.is_none();
    match fate {
        Fate::Dropped => matches!(seen, Seen::Nothing),
        // What the node sends to itself is not seen.
        Fate::Rejected => {
            matches!(seen, Seen::Answered) || is_from_node && matches!(seen, Seen::Nothing)
        }
        // No server listens there.
        Fate::Passed { to, .. } if local.contains(&to.ip()) => match seen {
            Seen::Answered => !is_from_node,
            Seen::Nothing => is_from_node,
            Seen::Out { .. } => false,
        },
        Fate::Passed { to, masqueraded, .. } => match seen {
            Seen::Out { to: seen, source } => {
                let is_own = local.contains(source);
                let is_kept = *source == packet.source.ip();
                seen == to && if *masqueraded { is_own } else { is_kept }
            }
            _ => false,
        },
    }
}

/// The packets of Services whose connections are not shared out by hashes, as the model takes one
/// hash for all, and that remember no clients of other frontends, as the model remembers none.
fn drawn(state: &State) -> Vec<Packet> {
    let mut state = state.clone();
    state.service_ports.retain(|_, port| {
        port.affinity.is_none()
            && !matches!(port.lb_algorithm, LbAlgorithm::SourceHash | LbAlgorithm::Maglev)
    });
    let mut packets = packets(&state);
    packets.retain(|packet| {
        packet.hash == 0
            && packet.protocol != Protocol::Sctp
            && !packet.destination.ip().is_loopback()
    });
    packets
}

/// A part of the packets, evenly chosen.
fn some(packets: Vec<Packet>) -> impl Iterator<Item = Packet> {
    let step = packets.len().div_ceil(MOST).max(1);
    packets.into_iter().step_by(step)
}

#[test]
fn the_kernel_treats_packets_as_the_model_does() {
    let config = proptest_config(200);
    let mut left = config.cases;
    let mut runner = TestRunner::new(config);
    let (mut sent, mut served) = (0, 0);
    while left > 0 {
        // A connection is tracked by its ports, of which a namespace has enough for so many states.
        let states = left.min(200);
        left -= states;
        let found = in_namespace(|| {
            let wire = Wire::new();
            wire.map_err(|error| test_netns::skipped(&format!("no interface: {error}")))
                .map(|wire| compare(wire, &mut runner, states))
                .unwrap_or_default()
        });
        let Some(found) = found else { return };
        sent += found.0;
        served += found.1;
    }
    println!("{sent} packets, {served} to endpoints");
    assert!(sent > served && served > 500, "{sent} {served}");
}

/// Sends packets through so many states of the tables, of which each fourth is not damaged. Returns
/// the number of packets, and of those to endpoints.
fn compare(mut wire: Wire, runner: &mut TestRunner, states: u32) -> Option<(usize, usize)> {
    let mut transport = NetlinkTransport::open().expect("netlink is there");
    let local = local_addresses();
    let (mut sent, mut served) = (0, 0);
    for state in 0..states {
        let (node, events) = sample(runner, (arbitrary_config(), arbitrary_events(120)));
        let tracker = tracker(node, events);
        let mut rules = switchyard_nft::render(&NftConfig::default(), tracker.state());
        let mut what = "healthy".to_owned();
        if state % 4 != 0
            && let Some(damaged) = damaged(&rules, sample(runner, NUMBERS))
        {
            (what, rules) = damaged;
        }
        let mut model = Ruleset::default();
        if !replace(&mut transport, &rules) || model.commit(&rules).is_err() {
            continue;
        }
        let commit = Commit::new(&model, &model, &local);
        let is_served =
            |packet: &Packet| commit.fates(packet).iter().any(|fate| fate.endpoint().is_some());
        let (to_endpoints, others): (Vec<_>, Vec<_>) =
            drawn(tracker.state()).into_iter().partition(is_served);
        served += to_endpoints.len();
        for mut packet in to_endpoints.into_iter().chain(some(others)) {
            let seen = wire.send(&mut packet);
            let fates = commit.fates(&packet);
            let is_one = fates.iter().any(|fate| shows(fate, &seen, &packet, &local));
            assert!(is_one, "{what}: {packet:?} should have {fates:?}, and has {seen:?}");
            sent += 1;
        }
    }
    Some((sent, served))
}
