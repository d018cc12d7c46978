//! Listeners, their routes and sources, as they come, change and go.

use std::{
    io::{ErrorKind, Write},
    mem,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use switchyard_core::{
    model::Protocol,
    state::{Action, PoolKind},
};
use switchyard_userspace::forwarder::{Forwarder, Listener, LocalClients};

use crate::forwarder::support::{self, *};

/// A Service port with an endpoint in each pool, and a listener for it that is not open yet.
fn with_both_pools() -> (Forwarder, Listener) {
    let forwarder = forwarder(|_| {});
    let web = id("web", Protocol::Tcp);
    let mut port = service(&web, &[echo("cluster")]);
    port.local = pool(&[echo("local")]);
    forwarder.serve(&Arc::new(port));
    (forwarder, listener(&web))
}

/// Waits until nothing has this address. A program that another test starts has copies of all
/// sockets until it runs.
fn wait_until_free(address: SocketAddr) {
    until("the address is free", || TcpListener::bind(address).is_ok());
}

#[test]
fn a_listener_changes_in_place() {
    let (forwarder, mut listener) = with_both_pools();
    listener.address = forwarder.listen(&listener).unwrap();
    let to = listener.address;
    let mut established = connect(to);
    expect(&mut established, "cluster");

    let Action::Pool { masquerade, .. } = CLUSTER else { unreachable!() };
    listener.action = Action::Pool { pool: PoolKind::Local, masquerade };
    assert_eq!(forwarder.listen(&listener).unwrap(), to);
    expect(&mut connect(to), "local");

    for action in [Action::Reject, Action::Drop] {
        listener.action = action;
        forwarder.listen(&listener).unwrap();
        expect_reset(&mut connect(to));
    }

    listener.action = CLUSTER;
    listener.allowed_sources = Some(["127.0.1.0/24".parse().unwrap()].into());
    forwarder.listen(&listener).unwrap();
    expect_reset(&mut connect(to));
    expect(&mut connect_from([127, 0, 1, 7], to), "cluster");

    let api = id("api", Protocol::Tcp);
    forwarder.serve(&Arc::new(service(&api, &[echo("api")])));
    let web = mem::replace(&mut listener.port, api);
    listener.allowed_sources = None;
    forwarder.listen(&listener).unwrap();
    expect(&mut connect(to), "api");
    // The address is no longer that of the first Service port.
    forwarder.remove(&[&web].into());
    expect(&mut connect(to), "api");

    established.write_all(b"still there").unwrap();
    expect(&mut established, "still there");
}

#[test]
fn local_policy_depends_on_the_client() {
    test_netns::in_namespace(|| {
        test_netns::run("ip link set lo up");
        test_netns::run("ip addr add 198.51.100.7/32 dev lo");
        let (forwarder, mut listener) = with_both_pools();
        listener.action = Action::ExternalLocal;
        let to = forwarder.listen(&listener).unwrap();
        expect(&mut connect(to), "cluster");
        // As a client from outside: that a socket can have an address does not make it the node's
        // (net.ipv4.ip_nonlocal_bind).
        let client = [198, 51, 100, 7];
        expect(&mut connect_from(client, to), "local");
        let addresses = [client.into()].into();
        forwarder.set_local_clients(LocalClients { addresses, ..LocalClients::default() });
        expect(&mut connect_from(client, to), "cluster");
    });
}

#[test]
fn connections_outlive_their_listener() {
    let forwarder = forwarder(|_| {});
    let web = id("web", Protocol::Tcp);
    let to = serve(&forwarder, "web", &[echo("a")]);
    let mut established = connect(to);
    expect(&mut established, "a");

    assert_eq!(forwarder.close([(Protocol::Tcp, to)]), 1);
    assert_eq!(forwarder.close([(Protocol::Tcp, to)]), 0);
    wait_until_free(to);
    let mut again = listener(&web);
    again.address = to;
    assert_eq!(forwarder.listen(&again).unwrap(), to, "beside the established connection");
    expect(&mut connect(to), "a");

    forwarder.remove(&[&web].into());
    wait_until_free(to);
    assert_eq!(forwarder.listen(&again).unwrap_err().source.kind(), ErrorKind::NotFound);
    established.write_all(b"still there").unwrap();
    expect(&mut established, "still there");

    drop(forwarder);
    expect_reset(&mut established);
}

#[test]
fn a_drain_ends_with_its_time_or_with_the_last_connection() {
    let forwarder = forwarder(|_| {});
    let to = serve(&forwarder, "web", &[echo("a")]);
    let mut established = connect(to);
    expect(&mut established, "a");
    forwarder.drain(Duration::from_millis(200));
    wait_until_free(to);
    established.write_all(b"still there").unwrap();
    expect(&mut established, "still there");
    drop(established);
    forwarder.drain(Duration::MAX);
    assert_eq!(forwarder.usage().connections, 0);
}

#[test]
fn an_address_that_is_taken_is_reported() {
    let forwarder = forwarder(|_| {});
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let web = id("web", Protocol::Tcp);
    forwarder.serve(&Arc::new(service(&web, &[])));
    let mut listener = listener(&web);
    listener.address = taken.local_addr().unwrap();
    let error = forwarder.listen(&listener).unwrap_err();
    assert_eq!(error.source.kind(), ErrorKind::AddrInUse);
    // The threads of one forwarder share an address, those of two do not.
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let web = id("web", protocol);
        let open = |forwarder: &Forwarder, address| {
            forwarder.serve(&Arc::new(service(&web, &[])));
            forwarder.listen(&Listener { address, ..support::listener(&web) })
        };
        let address = open(&forwarder, "127.0.0.1:0".parse().unwrap()).unwrap();
        let error = open(&support::forwarder(|_| {}), address).unwrap_err();
        assert_eq!(error.source.kind(), ErrorKind::AddrInUse);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn where_descriptors_are_few_one_thread_accepts_for_all() {
    // LISTEN, at an address and a port in hexadecimal digits.
    let sockets = |port| {
        let all = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let at = format!(" 0100007F:{port:04X} 00000000:0000 0A ");
        all.lines().filter(|line| line.contains(&at)).count()
    };
    for (descriptors, threads) in [(None, 2), (Some(32), 1)] {
        let forwarder = forwarder(|config| config.descriptors = descriptors);
        let to = serve(&forwarder, "web", &[echo("a")]);
        assert_eq!(sockets(to.port()), threads);
        let mut clients = [(); 3].map(|()| connect(to));
        clients.iter_mut().for_each(|client| expect(client, "a"));
    }
}

#[test]
fn both_families_can_have_the_same_port() {
    let forwarder = forwarder(|_| {});
    let web = id("web", Protocol::Tcp);
    forwarder.serve(&Arc::new(service(&web, &[echo("a")])));
    let mut listener = listener(&web);
    listener.address = "0.0.0.0:0".parse().unwrap();
    let v4 = forwarder.listen(&listener).unwrap();
    listener.address = SocketAddr::new("::".parse().unwrap(), v4.port());
    let v6 = forwarder.listen(&listener).unwrap();
    expect(&mut connect(SocketAddr::new([127, 0, 0, 1].into(), v4.port())), "a");
    let mut client =
        std::net::TcpStream::connect(SocketAddr::new("::1".parse().unwrap(), v6.port())).unwrap();
    expect(&mut client, "a");
}
