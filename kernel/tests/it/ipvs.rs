//! Virtual servers of the kernel, in a network namespace. Needs root. Where the kernel has no IPVS,
//! the tests are recorded as skipped; also where it would have to load the module, which would
//! stay.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use switchyard_kernel::ipvs::{
    Batch, Ipvs, RealServer, Refusal, Selector, Timeouts, VirtualServer,
};
use test_netns::{in_namespace, run, skipped};

/// Whether the kernel has IPVS. If not, the test is recorded as skipped, by the name of the thread.
fn has_ipvs() -> bool {
    let has = std::path::Path::new("/proc/net/ip_vs").exists();
    if !has {
        skipped("no IPVS in this kernel");
    }
    has
}

fn with_ipvs(test: impl FnOnce(Ipvs) + Send) {
    if !has_ipvs() {
        return;
    }
    in_namespace(|| {
        // Without any address, the kernel takes no IPv4 address for a unicast address.
        run("ip link set lo up");
        test(Ipvs::open().unwrap().unwrap());
    });
}

fn selector(ip: &str, port: u16) -> Selector {
    Selector::Address { protocol: libc::IPPROTO_TCP as u16, ip: ip.parse().unwrap(), port }
}

fn server(selector: Selector) -> VirtualServer {
    let is_ipv6 = matches!(
        selector,
        Selector::Address { ip: IpAddr::V6(_), .. } | Selector::Mark { family: 10, .. }
    );
    let netmask = if is_ipv6 { 128 } else { u32::MAX };
    VirtualServer { selector, scheduler: "rr".to_owned(), flags: 0, timeout: 0, netmask }
}

fn real(address: &str, weight: u32) -> RealServer {
    RealServer::new(address.parse().unwrap(), weight)
}

fn servers(ipvs: &mut Ipvs) -> Vec<VirtualServer> {
    ipvs.virtual_servers().unwrap()
}

fn reals(ipvs: &mut Ipvs, of: &Selector) -> Vec<RealServer> {
    let mut reals = ipvs.real_servers(of).unwrap();
    reals.sort_by_key(|real| real.address);
    reals
}

/// The error numbers of commands, with which the kernel answers a batch.
fn errnos(refusals: &[Refusal]) -> Vec<(usize, i32)> {
    refusals.iter().map(|refusal| (refusal.index, refusal.errno)).collect()
}

#[test]
fn what_is_added_is_listed() {
    with_ipvs(|mut ipvs| {
        let plain = server(selector("10.96.0.1", 443));
        let mut persistent = server(selector("10.96.0.2", 80));
        persistent.flags = VirtualServer::PERSISTENT;
        persistent.timeout = 10_800;
        persistent.netmask = 0xffff_ff00;
        let mut hashing = server(selector("10.96.0.3", 80));
        hashing.scheduler = "sh".to_owned();
        hashing.flags = VirtualServer::SCHED1 | VirtualServer::SCHED2;
        let udp =
            |ip: &str, protocol| Selector::Address { protocol, ip: ip.parse().unwrap(), port: 53 };
        let fourth = server(udp("10.96.0.4", libc::IPPROTO_UDP as u16));
        let mut sixth = server(udp("fd00::1", libc::IPPROTO_SCTP as u16));
        sixth.flags = VirtualServer::PERSISTENT;
        (sixth.timeout, sixth.netmask) = (60, 64);
        let mut none = server(selector("10.96.0.5", 80));
        none.scheduler = String::new();
        let marks = [libc::AF_INET, libc::AF_INET6]
            .map(|family| server(Selector::Mark { family: family as u16, mark: 9 }));

        let mut expected = vec![plain, persistent, hashing, fourth, sixth, none];
        expected.extend(marks);
        expected.sort_by_key(|server| server.selector);
        let mut batch = Batch::default();
        for server in &expected {
            batch.add_server(server);
        }
        assert_eq!(ipvs.commit(&batch).unwrap(), []);
        assert_eq!(servers(&mut ipvs), expected);
        assert!(ipvs.delete(&expected[0].selector).unwrap());
        assert!(!ipvs.delete(&expected[0].selector).unwrap());
        assert_eq!(servers(&mut ipvs), expected[1..]);
    });
}

#[test]
fn real_servers_of_both_families_are_listed_under_theirs() {
    with_ipvs(|mut ipvs| {
        let (v4, v6) = (selector("10.96.0.1", 443), selector("fd00::1", 443));
        let mark = Selector::Mark { family: libc::AF_INET6 as u16, mark: 5 };
        let expected = [
            (
                v4,
                vec![real("10.0.0.1:8443", 0), real("10.0.0.2:8443", 7), real("10.0.0.2:8444", 1)],
            ),
            (v6, vec![real("[fd00::1:1]:8443", 65_535), real("[fd00::1:2]:8443", i32::MAX as u32)]),
            (mark, vec![real("[fd00::1:1]:0", 1)]),
        ];
        let mut batch = Batch::default();
        for (selector, reals) in &expected {
            batch.add_server(&server(*selector));
            reals.iter().for_each(|real| batch.add_real(selector, real));
        }
        assert_eq!(ipvs.commit(&batch).unwrap(), []);
        for (selector, expected) in &expected {
            assert_eq!(reals(&mut ipvs, selector), *expected);
        }
        assert_eq!(ipvs.real_servers(&selector("10.96.0.9", 1)).unwrap(), []);
    });
}

#[test]
fn servers_are_changed_and_deleted() {
    with_ipvs(|mut ipvs| {
        let at = selector("10.96.0.1", 80);
        let mut changed = server(at);
        changed.flags = VirtualServer::PERSISTENT | VirtualServer::SCHED1;
        changed.timeout = 30;
        let mut batch = Batch::default();
        batch.add_server(&changed);
        batch.add_real(&at, &real("10.0.0.1:80", 1));
        batch.add_real(&at, &real("10.0.0.2:80", 1));
        assert_eq!(ipvs.commit(&batch).unwrap(), []);

        // Flags go as they came.
        changed.scheduler = "wrr".to_owned();
        (changed.flags, changed.timeout, changed.netmask) = (0, 0, 0xffff_0000);
        let mut batch = Batch::default();
        batch.edit_server(&changed);
        batch.edit_real(&at, &real("10.0.0.2:80", 0));
        batch.delete_real(&at, "10.0.0.1:80".parse().unwrap());
        assert_eq!(ipvs.commit(&batch).unwrap(), []);
        assert_eq!(servers(&mut ipvs), [changed]);
        assert_eq!(reals(&mut ipvs, &at), [real("10.0.0.2:80", 0)]);

        let mut batch = Batch::default();
        batch.delete_server(&at);
        assert_eq!(ipvs.commit(&batch).unwrap(), []);
        assert_eq!(servers(&mut ipvs), []);
    });
}

/// The table of `Refusal` is what the kernel answers; and what follows a refused command is done.
#[test]
fn refusals_name_their_commands_and_the_rest_is_done() {
    with_ipvs(|mut ipvs| {
        let (at, missing) = (selector("10.96.0.1", 80), selector("10.96.0.2", 80));
        let v6 = selector("fd00::1", 80);
        let (one, two) = (real("10.0.0.1:80", 1), real("10.0.0.2:80", 1));
        let unknown = |name: &str| VirtualServer { scheduler: name.to_owned(), ..server(missing) };
        let mut batch = Batch::default();
        batch.add_server(&server(at));
        batch.add_server(&server(at));
        batch.add_real(&at, &one);
        batch.add_real(&at, &one);
        batch.edit_real(&at, &two);
        batch.delete_real(&at, two.address);
        batch.edit_server(&server(missing));
        batch.delete_server(&missing);
        batch.add_real(&missing, &one);
        batch.edit_real(&missing, &one);
        batch.delete_real(&missing, one.address);
        batch.add_server(&unknown("no-such"));
        batch.add_server(&unknown("a-name-of-16-byt"));
        batch.add_server(&VirtualServer { netmask: 0, ..server(v6) });
        batch.add_server(&VirtualServer { netmask: 129, ..server(v6) });
        batch.add_real(&at, &real("[fd00::1]:80", 1));
        batch.add_real(&at, &real("224.0.0.1:80", 1));
        batch.add_real(&at, &RealServer { weight: 1 << 31, ..two });
        batch.add_real(&at, &two);
        let expected = [
            (1, libc::EEXIST),
            (3, libc::EEXIST),
            (4, libc::ENOENT),
            (5, libc::ENOENT),
            (6, libc::ESRCH),
            (7, libc::ESRCH),
            (8, libc::ESRCH),
            (9, libc::ESRCH),
            (10, libc::ESRCH),
            (11, libc::ENOENT),
            (12, libc::EINVAL),
            (13, libc::EINVAL),
            (14, libc::EINVAL),
            (15, libc::EINVAL),
            (16, libc::EINVAL),
            (17, libc::ERANGE),
        ];
        let refusals = ipvs.commit(&batch).unwrap();
        assert_eq!(errnos(&refusals), expected);
        assert_eq!(refusals[0].to_string(), "File exists");
        assert_eq!(servers(&mut ipvs), [server(at)]);
        assert_eq!(reals(&mut ipvs, &at), [one, two]);
    });
}

/// More than one chunk, and more than one datagram of a list.
#[test]
fn many_servers_and_many_refusals() {
    with_ipvs(|mut ipvs| {
        let at = |i: u32| {
            let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 0)) + i);
            Selector::Address { protocol: 6, ip: ip.into(), port: 80 }
        };
        let mut batch = Batch::default();
        for i in 0..1000 {
            batch.add_server(&server(at(i)));
        }
        let first = at(0);
        for i in 0..1000 {
            let address = SocketAddr::new(Ipv4Addr::new(10, 1, (i >> 8) as u8, i as u8).into(), 80);
            batch.add_real(&first, &RealServer::new(address, i));
        }
        assert_eq!(ipvs.commit(&batch).unwrap(), []);
        let refusals = ipvs.commit(&batch).unwrap();
        let expected: Vec<_> = (0..2000).map(|i| (i, libc::EEXIST)).collect();
        assert_eq!(errnos(&refusals), expected);

        let listed = servers(&mut ipvs);
        assert!(listed.into_iter().map(|server| server.selector).eq((0..1000).map(at)));
        let listed = reals(&mut ipvs, &first);
        assert!(listed.into_iter().map(|real| real.weight).eq(0..1000));
        assert_eq!(reals(&mut ipvs, &at(1)), []);
    });
}

/// The kernel has one table for all network namespaces, and counts in that where a list goes on.
#[test]
fn lists_are_complete_while_other_namespaces_change() {
    if !has_ipvs() {
        return;
    }
    let done = AtomicBool::new(false);
    let at = |i: u32| selector(&Ipv4Addr::from(0x0a60_0000 + i).to_string(), 80);
    thread::scope(|scope| {
        scope.spawn(|| {
            with_ipvs(|mut ipvs| {
                let (mut add, mut delete) = (Batch::default(), Batch::default());
                for i in 0..200 {
                    add.add_server(&server(at(i)));
                    delete.delete_server(&at(i));
                }
                while !done.load(Ordering::Relaxed) {
                    for batch in [&add, &delete] {
                        assert_eq!(ipvs.commit(batch).unwrap(), []);
                        thread::sleep(Duration::from_millis(100));
                    }
                }
            });
        });
        // Ends the other thread also if this one fails.
        let listing = scope.spawn(|| {
            with_ipvs(|mut ipvs| {
                let mut batch = Batch::default();
                (0..1000).for_each(|i| batch.add_server(&server(at(i))));
                assert_eq!(ipvs.commit(&batch).unwrap(), []);
                for _ in 0..60 {
                    let listed: Vec<_> = servers(&mut ipvs).iter().map(|s| s.selector).collect();
                    assert!(listed.iter().copied().eq((0..1000).map(at)), "{}", listed.len());
                }
            });
        });
        let listed = listing.join();
        done.store(true, Ordering::Relaxed);
        listed.unwrap();
    });
}

#[test]
fn the_forwarding_of_others_is_seen_and_changed() {
    with_ipvs(|mut ipvs| {
        // `ipvsadm` by the kernel's older interface: a virtual server with a tunnel.
        let at = selector("10.96.0.1", 80);
        let mut batch = Batch::default();
        batch.add_server(&server(at));
        assert_eq!(ipvs.commit(&batch).unwrap(), []);
        old_interface::add_tunnel(Ipv4Addr::new(10, 96, 0, 1), Ipv4Addr::new(10, 0, 0, 1), 80);
        let [tunnel] = reals(&mut ipvs, &at)[..] else { panic!("one real server") };
        assert_eq!(tunnel, RealServer { is_masquerading: false, ..real("10.0.0.1:80", 3) });
        let mut batch = Batch::default();
        batch.edit_real(&at, &tunnel);
        assert_eq!(ipvs.commit(&batch).unwrap(), []);
        assert_eq!(reals(&mut ipvs, &at), [real("10.0.0.1:80", 3)]);
    });
}

#[test]
fn timeouts_are_set_one_by_one() {
    with_ipvs(|mut ipvs| {
        // The kernel's own.
        let (tcp, tcp_fin, udp) = (15 * 60, 2 * 60, 5 * 60);
        assert_eq!(ipvs.timeouts().unwrap(), Timeouts { tcp, tcp_fin, udp });
        ipvs.set_timeouts(Timeouts { tcp: 0, tcp_fin: 7, udp: 0 }).unwrap();
        assert_eq!(ipvs.timeouts().unwrap(), Timeouts { tcp, tcp_fin: 7, udp });
        ipvs.set_timeouts(Timeouts { tcp: 5, tcp_fin: 0, udp: 6 }).unwrap();
        assert_eq!(ipvs.timeouts().unwrap(), Timeouts { tcp: 5, tcp_fin: 7, udp: 6 });
        let error = ipvs.set_timeouts(Timeouts { tcp: u32::MAX, tcp_fin: 1, udp: 1 }).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EINVAL));
        assert_eq!(ipvs.timeouts().unwrap(), Timeouts { tcp: 5, tcp_fin: 7, udp: 6 });
    });
}

/// The socket options that preceded netlink, in which a test chooses what this crate never writes.
mod old_interface {
    use std::{
        io,
        net::{Ipv4Addr, UdpSocket},
        os::fd::AsRawFd,
    };

    /// `struct ip_vs_service_user`, and `struct ip_vs_dest_user` behind it.
    #[repr(C)]
    struct Request {
        protocol: u16,
        address: u32,
        port: [u8; 2],
        mark: u32,
        scheduler: [u8; 16],
        flags: u32,
        timeout: u32,
        netmask: u32,
        real_address: u32,
        real_port: [u8; 2],
        forwarding: u32,
        weight: i32,
        thresholds: [u32; 2],
    }

    /// `IP_VS_SO_SET_ADDDEST`
    const ADD_DESTINATION: i32 = 64 + 1024 + 64 + 7;
    /// `IP_VS_CONN_F_TUNNEL`
    const TUNNEL: u32 = 2;

    /// Adds a real server of weight 3, to which a tunnel leads.
    pub(crate) fn add_tunnel(server: Ipv4Addr, real: Ipv4Addr, port: u16) {
        let request = Request {
            protocol: libc::IPPROTO_TCP as u16,
            address: u32::from_ne_bytes(server.octets()),
            port: port.to_be_bytes(),
            mark: 0,
            scheduler: [0; 16],
            flags: 0,
            timeout: 0,
            netmask: 0,
            real_address: u32::from_ne_bytes(real.octets()),
            real_port: port.to_be_bytes(),
            forwarding: TUNNEL,
            weight: 3,
            thresholds: [0; 2],
        };
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // SAFETY: the pointer and the length are those of a live value.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_IP,
                ADD_DESTINATION,
                (&raw const request).cast(),
                size_of::<Request>() as libc::socklen_t,
            )
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }
}
