//! IPv6 as other programs left it.

use switchyard_core::{
    model::IpFamily,
    testing::{
        Stepped,
        conformance::{Subject, cluster, node_config},
        service, web_slice,
    },
};
use test_netns::{run, switch_ipv6};

use super::{on_ipvs, subject::IpvsSubject};

/// Nodes without IPv6 where only devices have it switched off.
#[test]
fn ipv6_that_is_switched_off_on_the_device_costs_ipv4_nothing() {
    let subject = on_ipvs!(IpvsSubject::nft());
    subject.in_namespace(|| {
        switch_ipv6("default", false);
        let mut proxy = Stepped::new(node_config(), subject.open());
        proxy.sync(cluster());
        assert!(!proxy.tracker.transition().programs(IpFamily::V6));
        let addresses = || run("ip -brief address show dev kube-ipvs0");
        assert!(addresses().contains("10.96.0.1/32"), "{}", addresses());
        let more = service("more", "10.96.0.6").port("http", "TCP", 80);
        proxy.sync([more.apply(), service("idle", "10.96.0.5").delete(), web_slice(&[2])]);
        let found = addresses();
        assert!(found.contains("10.96.0.6/32") && !found.contains("10.96.0.5/32"), "{found}");
        assert!(!found.contains("fd00::4"), "{found}");

        switch_ipv6("kube-ipvs0", true);
        let report = proxy.sync([]);
        assert!(report.drift.is_none(), "{report:?}");
        assert!(proxy.tracker.transition().programs(IpFamily::V6));
        assert!(addresses().contains("fd00::4/128"), "{}", addresses());
        assert!(subject.dump().contains("real 17 [fd00::4]:53 [fd01::20]:53 1"));
    });
}

/// kube-proxy's addresses can be chosen as the source of masqueraded packets.
#[test]
fn addresses_that_are_there_become_deprecated() {
    let subject = on_ipvs!(IpvsSubject::nft());
    subject.in_namespace(|| {
        run("ip link add kube-ipvs0 type dummy");
        run("ip address add fd00::4/128 dev kube-ipvs0");
        let addresses = || run("ip -o address show dev kube-ipvs0");
        assert!(!addresses().contains("deprecated"), "{}", addresses());
        let mut proxy = Stepped::new(node_config(), subject.open());
        proxy.sync(cluster());
        assert!(addresses().contains("deprecated"), "{}", addresses());
    });
}
