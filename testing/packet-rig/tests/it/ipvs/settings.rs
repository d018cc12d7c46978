//! Settings of the kernel.

use super::{C, WEB, servers, start, wait, web};

#[test]
fn parameters_are_those_that_ipvs_needs() {
    let Some(rig) = start("parameters", &web("", "", &[C]), "ipvs: {strictARP: true}") else {
        return;
    };
    for (name, expected) in [
        ("vs/conntrack", "1"),
        ("vs/expire_nodest_conn", "1"),
        ("vs/expire_quiescent_template", "1"),
        ("vs/conn_reuse_mode", "1"),
        ("ip_forward", "1"),
        ("conf/all/arp_ignore", "1"),
        ("conf/all/arp_announce", "2"),
    ] {
        let value = rig.topology.node().namespace.setting(&format!("ipv4/{name}"));
        assert_eq!(value.unwrap(), expected, "{name}");
    }
}

/// Only what is configured is set.
#[test]
fn timeouts_are_set() {
    let config = "ipvs: {tcpTimeout: 100s, tcpFinTimeout: 7s}";
    let Some(rig) = start("timeouts", &web("", "", &[C]), config) else { return };
    let timeouts = rig.topology.node().namespace.run(|| {
        let mut ipvs = switchyard_kernel::ipvs::Ipvs::open().unwrap().unwrap();
        ipvs.timeouts().unwrap()
    });
    let timeouts = timeouts.unwrap();
    // What is not configured is the kernel's.
    assert_eq!((timeouts.tcp, timeouts.tcp_fin, timeouts.udp), (100, 7, 300));
}

/// Clients with affinity have a virtual server that remembers them.
#[test]
fn affinity_is_persistence() {
    let affinity = "sessionAffinity: ClientIP, \
                    sessionAffinityConfig: {clientIP: {timeoutSeconds: 70}}, ";
    let Some(rig) = start("affinity", &web("", affinity, &[C]), "") else { return };
    wait(&rig, "the virtual server remembers", || {
        let found = servers(&rig).into_iter().find(|server| server.at == WEB);
        // The timeout in the kernel's ticks, of which 250 are a second.
        found.is_some_and(|server| server.scheduler == "rr persistent 17500 FFFFFFFF")
    });
}
