//! What the rules do to packets of the node. Without IPVS, servers listen at the addresses of Services.

use std::{io::ErrorKind, net::UdpSocket, time::Duration};

use super::*;

fn of_udp(mut detour: Detour) -> Detour {
    detour.name.protocol = Protocol::Udp;
    detour
}

/// A socket that has received nothing yet.
fn listen(at: &str) -> UdpSocket {
    let socket = UdpSocket::bind(at).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    socket
}

/// Sends a datagram from a new socket, and returns what comes of it: nothing, or an error.
fn send(to: &str) -> Option<ErrorKind> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket.connect(to).unwrap();
    let sent = socket.send(b"hello").and_then(|_| socket.recv(&mut [0; 16]));
    sent.err().map(|error| error.kind()).filter(|kind| *kind != ErrorKind::WouldBlock)
}

#[test]
fn the_nodes_own_packets_follow_the_rules() {
    in_namespace(|| {
        run("ip link set lo up");
        for address in ["10.96.0.1", "10.96.0.2", "192.0.2.1"] {
            run(&format!("ip address add {address}/32 dev lo"));
        }
        let mut fixture = Fixture::new();
        let v4 = |set, entry| (IpFamily::V4, set, entry);
        fixture.wanted.extend([
            v4(Set::Bound, Entry::Ip(ip("10.96.0.1"))),
            v4(Set::Bound, Entry::Ip(ip("10.96.0.2"))),
            v4(Set::ClusterIp, at("10.96.0.1", 53)),
            v4(Set::LoadBalancer, at("10.96.0.2", 53)),
            v4(Set::LoadBalancerFirewall, at("10.96.0.2", 53)),
            v4(Set::LoadBalancer, at("10.96.0.2", 54)),
            v4(Set::LoadBalancerFirewall, at("10.96.0.2", 54)),
            v4(Set::Silent, at("10.96.0.2", 55)),
            v4(Set::NodePort(Protocol::Udp), Entry::Port(30_053)),
            v4(Set::NodePortLocal(Protocol::Udp), Entry::Port(30_053)),
        ]);
        fixture.wanted.extend(allowed("10.96.0.2", 53, &["192.0.2.0/24"]));
        fixture.wanted.extend(allowed("10.96.0.2", 54, &["10.96.0.0/24"]));
        let target = ["192.0.2.1:5353"].map(|at| (at.parse().unwrap(), 1));
        fixture.exceptions.v4.detours = vec![of_udp(detour(None, 30_053, &target))];
        fixture.compare();

        let [served, other, limited, open, silent] =
            ["10.96.0.1:53", "10.96.0.1:54", "10.96.0.2:53", "10.96.0.2:54", "10.96.0.2:55"]
                .map(|at| (listen(at), at));
        let (detoured, skipped) = (listen("192.0.2.1:5353"), listen("192.0.2.1:30053"));
        let receives = |socket: &UdpSocket| socket.recv(&mut [0; 16]).is_ok();

        assert_eq!(send(served.1), None);
        assert!(receives(&served.0), "a served port");
        assert_eq!(send(other.1), Some(ErrorKind::ConnectionRefused));
        assert!(!receives(&other.0), "a port that no Service has");
        assert_eq!(send(limited.1), Some(ErrorKind::PermissionDenied));
        assert!(!receives(&limited.0), "from outside the source ranges");
        assert_eq!(send(open.1), None);
        assert!(receives(&open.0), "from within the source ranges");
        assert_eq!(send(silent.1), None);
        assert!(!receives(&silent.0), "no endpoints on this node");
        assert_eq!(send("192.0.2.1:30053"), None);
        assert!(receives(&detoured) && !receives(&skipped), "a node port with a detour");
    });
}
