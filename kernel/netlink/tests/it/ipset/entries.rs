//! Entries of sets, in a network namespace. Needs root, and the program `ipset`.

use std::net::{IpAddr, Ipv4Addr};

use switchyard_netlink::ipset::{Entry, IpSets, SetBatch, SetRefusal, SetSpec, SetType};
use test_netns::{in_namespace, run};

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

fn create(sets: &mut IpSets, name: &str, kind: SetType, is_v6: bool, max_elements: u32) {
    sets.create(&SetSpec { name: name.to_owned(), kind, is_v6, max_elements }).unwrap();
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn entries(sets: &mut IpSets, name: &str) -> Vec<Entry> {
    let mut entries = sets.entries(name).unwrap().unwrap();
    entries.sort();
    entries
}

/// The entries that the program lists, in its words.
fn listed(name: &str) -> Vec<String> {
    let list = run(&format!("ipset list {name}"));
    let mut lines: Vec<_> =
        list.lines().skip_while(|line| *line != "Members:").skip(1).map(str::to_owned).collect();
    lines.sort();
    lines
}

fn errnos(refusals: &[SetRefusal]) -> Vec<(usize, i32)> {
    refusals.iter().map(|refusal| (refusal.index, refusal.errno)).collect()
}

/// Sets of all types, each with an entry and the program's words for it.
fn examples() -> Vec<(&'static str, SetType, bool, Entry, &'static str)> {
    let (v4, v6) = (ip("192.0.2.1"), ip("2001:db8::1"));
    let net = |text: &str| text.parse().unwrap();
    vec![
        ("A", SetType::HashIp, false, Entry::Ip(v4), "192.0.2.1"),
        ("A6", SetType::HashIp, true, Entry::Ip(v6), "2001:db8::1"),
        (
            "B",
            SetType::HashIpPort,
            false,
            Entry::IpPort { ip: v4, protocol: SCTP, port: 80 },
            "192.0.2.1,sctp:80",
        ),
        (
            "B6",
            SetType::HashIpPort,
            true,
            Entry::IpPort { ip: v6, protocol: TCP, port: 65_535 },
            "2001:db8::1,tcp:65535",
        ),
        (
            "C",
            SetType::HashIpPortIp,
            false,
            Entry::IpPortIp { ip: v4, protocol: UDP, port: 53, second: ip("192.0.2.2") },
            "192.0.2.1,udp:53,192.0.2.2",
        ),
        (
            "C6",
            SetType::HashIpPortIp,
            true,
            Entry::IpPortIp { ip: v6, protocol: SCTP, port: 0, second: v6 },
            "2001:db8::1,sctp:0,2001:db8::1",
        ),
        (
            "D",
            SetType::HashIpPortNet,
            false,
            Entry::IpPortNet { ip: v4, protocol: TCP, port: 80, net: net("198.51.100.0/25") },
            "192.0.2.1,tcp:80,198.51.100.0/25",
        ),
        (
            "D6",
            SetType::HashIpPortNet,
            true,
            Entry::IpPortNet { ip: v6, protocol: UDP, port: 80, net: net("2001:db8::/33") },
            "2001:db8::1,udp:80,2001:db8::/33",
        ),
        ("E", SetType::BitmapPort, false, Entry::Port(30_080), "30080"),
    ]
}

#[test]
fn our_entries_are_those_of_the_program() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        for (name, kind, is_v6, entry, words) in examples() {
            assert_eq!(sets.entries(name).unwrap(), None, "{name}");
            create(&mut sets, name, kind, is_v6, 65_536);
            assert_eq!(entries(&mut sets, name), [], "{name}");
            let (mut add, mut delete) = (SetBatch::default(), SetBatch::default());
            add.add(name, entry);
            delete.delete(name, entry);
            for _ in 0..2 {
                assert_eq!(sets.commit(&add).unwrap(), [], "{name}");
                assert_eq!(listed(name), [words]);
                assert_eq!(entries(&mut sets, name), [entry]);
            }
            for _ in 0..2 {
                assert_eq!(sets.commit(&delete).unwrap(), [], "{name}");
                assert_eq!(listed(name), [""; 0]);
            }
            // The program finds ours, and we find the program's.
            run(&format!("ipset add {name} {words}"));
            assert_eq!(entries(&mut sets, name), [entry]);
            assert_eq!(sets.commit(&add).unwrap(), [], "{name}");
            run(&format!("ipset del {name} {words}"));
            assert_eq!(entries(&mut sets, name), [], "{name}");
        }
    });
}

#[test]
fn networks_have_no_bits_behind_the_prefix_and_not_all_addresses() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        for (name, ip, all, inside, network, halves) in [
            (
                "A",
                ip("192.0.2.1"),
                "0.0.0.0/0",
                "10.1.2.3/8",
                "10.0.0.0/8",
                ["0.0.0.0/1", "128.0.0.0/1"],
            ),
            ("B", ip("2001:db8::1"), "::/0", "fd00::5/16", "fd00::/16", ["::/1", "8000::/1"]),
        ] {
            create(&mut sets, name, SetType::HashIpPortNet, ip.is_ipv6(), 65_536);
            let entry = |net: &str| Entry::IpPortNet {
                ip,
                protocol: TCP,
                port: 80,
                net: net.parse().unwrap(),
            };
            let mut batch = SetBatch::default();
            for net in [all, inside, halves[0], halves[1]] {
                batch.add(name, entry(net));
            }
            let refusals = sets.commit(&batch).unwrap();
            assert_eq!(errnos(&refusals), [(0, 4104)]);
            assert_eq!(refusals[0].to_string(), "a network of all addresses cannot be an entry");
            let mut expected = [network, halves[0], halves[1]].map(entry);
            expected.sort();
            assert_eq!(entries(&mut sets, name), expected);
            for half in halves {
                run(&format!("ipset test {name} {ip},tcp:80,{half}"));
            }
        }
        // An exception of another program is no entry, but becomes one.
        let excepted = Entry::IpPortNet {
            ip: ip("192.0.2.9"),
            protocol: TCP,
            port: 80,
            net: "10.0.0.0/24".parse().unwrap(),
        };
        run("ipset add A 192.0.2.9,tcp:80,10.0.0.0/24 nomatch");
        assert!(!entries(&mut sets, "A").contains(&excepted));
        let mut batch = SetBatch::default();
        batch.add("A", excepted);
        assert_eq!(sets.commit(&batch).unwrap(), []);
        assert!(entries(&mut sets, "A").contains(&excepted));
    });
}

/// The table of `SetRefusal` is what the kernel answers; and what follows a refused change is done.
#[test]
fn refusals_name_their_changes_and_the_rest_is_done() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        create(&mut sets, "A", SetType::HashIp, false, 100);
        let entry = |i: u32| Entry::Ip(Ipv4Addr::from(0xc000_0200 + i).into());
        let mut batch = SetBatch::default();
        batch.add("no-such", entry(0));
        batch.delete("no-such", entry(0));
        batch.add("A", Entry::Ip(ip("2001:db8::1")));
        batch.add("A", Entry::Port(80));
        (0..1000).for_each(|i| batch.add("A", entry(i)));
        batch.delete("A", entry(5));
        assert_eq!(batch.len(), 1005);
        let refusals = sets.commit(&batch).unwrap();
        assert_eq!(
            errnos(&refusals[..4]),
            [(0, libc::ENOENT), (1, libc::ENOENT), (2, 4097), (3, 4097)]
        );
        assert_eq!(refusals[0].to_string(), "there is no such set");
        // The kernel counts roughly; the last ones are too many in any case.
        let full = &refusals[4..];
        assert!((800..950).contains(&full.len()), "{}", full.len());
        assert!(full.iter().all(|refusal| refusal.errno == 4352));
        assert_eq!(full.last().unwrap().index, 1003);
        assert_eq!(full[0].to_string(), "the set is full");
        let listed = entries(&mut sets, "A");
        assert_eq!(listed.len(), 1000 - full.len() - 1);
        assert!(listed.contains(&entry(4)) && !listed.contains(&entry(5)));
    });
}

/// More than is sent at once, and more than one datagram of a list.
#[test]
fn many_entries() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        create(&mut sets, "A", SetType::HashIpPort, false, 65_536);
        create(&mut sets, "E", SetType::BitmapPort, false, 0);
        let mut expected: Vec<_> = (0..10_000_u32)
            .map(|i| Entry::IpPort {
                ip: Ipv4Addr::from(0x0a60_0000 + i).into(),
                protocol: TCP,
                port: (i % 3) as u16,
            })
            .collect();
        expected.sort();
        let ports: Vec<_> = (0..=u16::MAX).map(Entry::Port).collect();
        let mut batch = SetBatch::default();
        expected.iter().for_each(|entry| batch.add("A", *entry));
        ports.iter().for_each(|port| batch.add("E", *port));
        assert_eq!(sets.commit(&batch).unwrap(), []);
        assert_eq!(entries(&mut sets, "A"), expected);
        assert_eq!(entries(&mut sets, "E"), ports);
    });
}
