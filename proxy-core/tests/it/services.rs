//! Service objects: what is served, what is left alone, and what is said about the rest.

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use serde_json::json;
use switchyard_core::{
    explain::{EndpointState, Known},
    model::{IpFamily, Protocol, ServicePortId},
    proxier::{Capabilities, Mode},
    state::{Frontend, FrontendAddress},
    testing::{Builder, endpoint, node, service, service_cidr, slice},
};

use crate::support::{Cluster, fields, frontends, id, id_of};

fn web() -> Builder {
    service("web", "10.0.0.1").port("http", "TCP", 80)
}

#[test]
fn cluster_ips_must_fit_their_families() {
    let mut cluster = Cluster::new();
    let odd = service("odd", "10.0.0.1,fd00::1")
        .set("spec.ipFamilies", json!(["IPv6", "IPv6"]))
        .port("", "TCP", 80);
    assert_eq!(fields(&cluster.apply(&[odd])), ["Service ns/odd: spec.clusterIPs[0]"]);
    assert_eq!(cluster.programmed(), ["ns/odd (TCP, IPv6)"]);
    let twice = service("twice", "10.0.0.2,10.0.0.3").port("", "TCP", 80);
    assert_eq!(fields(&cluster.apply(&[twice])), ["Service ns/twice: spec.clusterIPs[1]"]);
    assert_eq!(frontends(&cluster.port("twice", "")), ["clusterIP 10.0.0.2:80"]);
}

#[test]
fn hand_written_services_may_be_short() {
    let mut cluster = Cluster::new();
    // As someone writes it for --manifests: no clusterIPs, no ipFamilies, no namespace, no type.
    let short = Builder::from_json(
        switchyard_core::objects::Kind::Service,
        json!({
            "metadata": {"name": "short", "labels": {"empty": null}},
            "spec": {"clusterIP": "10.0.0.9", "ports": [{"port": 53, "protocol": "UDP"}]},
        }),
    );
    assert_eq!(cluster.apply(&[short]), []);
    assert_eq!(cluster.programmed(), ["default/short (UDP, IPv4)"]);
    // clusterIPs without ipFamilies, and without clusterIP.
    let listed = web().set("spec.clusterIP", json!(null)).set("spec.ipFamilies", json!(null));
    assert_eq!(cluster.apply(&[listed]), []);
    assert_eq!(frontends(&cluster.port("web", "http")), ["clusterIP 10.0.0.1:80"]);
}

#[test]
fn what_is_not_ours_is_left_alone() {
    for (what, other) in [
        ("headless", web().set("spec.clusterIP", "None")),
        (
            "headless, by list",
            web().set("spec.clusterIP", "").set("spec.clusterIPs", json!(["None"])),
        ),
        ("ExternalName", web().set("spec.type", "ExternalName")),
        ("no address yet", web().set("spec.clusterIP", "").set("spec.clusterIPs", json!([]))),
        ("another proxy's", web().label("service.kubernetes.io/service-proxy-name", "cilium")),
        ("another proxy's, unnamed", web().label("service.kubernetes.io/service-proxy-name", "")),
    ] {
        let mut cluster = Cluster::new();
        assert_eq!(cluster.apply([&other]), [], "{what}");
        assert_eq!(cluster.programmed(), [""; 0], "{what}");
        // Also when it was ours before, and when it becomes ours again.
        cluster.apply(&[web()]);
        cluster.take_changes();
        assert_eq!(cluster.apply(&[other]), [], "{what}");
        assert_eq!(cluster.take_changes(), ["ns/web:http (TCP, IPv4)"], "{what}");
        assert_eq!(cluster.programmed(), [""; 0], "{what}");
        cluster.apply(&[web()]);
        assert_eq!(cluster.programmed(), ["ns/web:http (TCP, IPv4)"], "{what}");
    }
}

#[test]
fn a_proxy_with_a_name_serves_the_services_that_name_it() {
    let labelled = |name: &str| web().label("service.kubernetes.io/service-proxy-name", name);
    let mut cluster = Cluster::with(|config| config.service_proxy_name = Some("pilot".to_owned()));
    for (service, programmed) in [
        (labelled("pilot"), &["ns/web:http (TCP, IPv4)"][..]),
        (labelled("other"), &[]),
        (labelled("pilot"), &["ns/web:http (TCP, IPv4)"]),
        (web(), &[]),
        (labelled(""), &[]),
    ] {
        assert_eq!(cluster.apply(&[service]), []);
        assert_eq!(cluster.programmed(), programmed);
    }
    // Addresses that no Service has are the other proxy's.
    cluster.apply(&[service_cidr("kubernetes", &["10.0.0.0/16"])]);
    assert_eq!(cluster.tracker.state().node.service_cidrs, Default::default());
}

/// An object of some kilobytes must not keep all other Services waiting.
#[test]
fn frontends_are_limited() {
    let mut cluster = Cluster::new();
    let ips =
        |third: u32| (0..20_000).map(move |i: u32| format!("192.{third}.{}.{}", i / 250, i % 250));
    let ingress: Vec<_> = ips(1).take(3_000).map(|ip| json!({ "ip": ip })).collect();
    let wide = web()
        .port("https", "TCP", 443)
        .set("spec.externalIPs", json!(ips(2).collect::<Vec<_>>()))
        .set("status.loadBalancer.ingress", json!(ingress));
    assert_eq!(fields(&cluster.apply(&[wide])), ["Service ns/web: spec.externalIPs"]);
    let served = frontends(&cluster.port("web", "http"));
    assert_eq!(served.len(), 10_000);
    assert_eq!(served[3_000], "loadBalancer 192.1.11.249:80");
}

#[test]
fn destinations_are_limited() {
    let mut cluster = Cluster::new();
    let names = || (0..1000).map(|number| format!("p{number}"));
    let mut wide = service("web", "10.0.0.1,fd00::1");
    let mut many = slice("web", "1");
    for (name, number) in names().zip(1..) {
        wide = wide.port(&name, "UDP", number);
        many = many.port(&name, "UDP", number);
    }
    let endpoints: Vec<_> =
        (0..510).map(|i| endpoint(&format!("10.1.{}.{}", i / 250, i % 250), "node-1")).collect();
    let problems = cluster.apply(&[wide.clone(), many.clone().set("endpoints", json!(endpoints))]);
    assert_eq!(fields(&problems), ["Service ns/web: spec.ports"]);
    assert!(problems[0].message.contains("IPv4 endpoints after the first 500 "), "{problems:?}");
    let find = |cluster: &Cluster, name: &str| {
        let ports = cluster.tracker.state().service_ports.values();
        let is_it = |id: &ServicePortId| id.family == IpFamily::V4 && &*id.name.port == name;
        ports.clone().find(|port| is_it(&port.id)).cloned().unwrap()
    };
    for name in names() {
        assert_eq!(find(&cluster, &name).cluster.len(), 500);
    }
    assert_eq!(find(&cluster, "p7").draining.len(), 0);
    let of_port = |port: &ServicePortId| &*port.name.port == "p7";
    let known = cluster.tracker.service(&id("web", "p7").name.service, &of_port).unwrap();
    let states = known.ports.iter().flat_map(|port| &port.endpoints).map(|e| e.state);
    let states: Vec<_> = states.filter(|state| !state.is_used()).collect();
    assert_eq!(states, [EndpointState::BeyondLimit; 10]);
    // Said once, and no more when there are fewer.
    assert_eq!(cluster.apply(&[many.clone().set("endpoints", json!(endpoints[..505]))]), []);
    // Those that end are in no way.
    let mut rolling = endpoints[..500].to_vec();
    rolling.extend(endpoints[500..].iter().cloned().map(|mut ending| {
        ending["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
        ending
    }));
    cluster.apply(&[many.set("endpoints", json!(rolling))]);
    assert_eq!(cluster.tracker.problems().count(), 0);
    assert_eq!(find(&cluster, "p7").draining.len(), 10);
    // They count once for each address, if it has endpoints of its own.
    let by_address = Capabilities::KUBE_PROXY.with_endpoints_at_each_address();
    cluster.tracker.set_capabilities(by_address.with_listed_node_ports(), Mode::IPVS);
    cluster.apply(&[node("node-1", "192.0.2.1")]);
    cluster
        .tracker
        .set_interface_addresses(["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap()));
    assert_eq!(cluster.events([]), []);
    let limited = wide.clone().set("spec.externalIPs", json!(["198.51.100.1"])).node_port(30_000);
    let problems = cluster.apply(&[limited.set("spec.type", "NodePort")]);
    assert!(problems[0].message.contains("IPv4 endpoints after the first 249 "), "{problems:?}");
    assert_eq!(find(&cluster, "p7").cluster.len(), 249);
    assert_eq!(find(&cluster, "p7").draining.len(), 10);
    assert_eq!(cluster.apply(&[wide]), []);
    assert_eq!(find(&cluster, "p7").cluster.len(), 500);
}

#[test]
fn endpoints_are_looked_at_for_ports_in_different_slices_up_to_a_limit() {
    let mut cluster = Cluster::new();
    let balanced = web()
        .set("spec.type", "LoadBalancer")
        .set("spec.externalTrafficPolicy", "Local")
        .set("spec.healthCheckNodePort", 31_000)
        .port("wide", "TCP", 81)
        .port("last", "TCP", 82);
    let address = |i: u32| std::net::Ipv4Addr::from(0x0a01_0000 + i).to_string();
    let slices = (0..50).map(|number| {
        let endpoints = (0..1_000).map(|i| endpoint(&address(number * 1_000 + i), "node-1"));
        let endpoints = json!(endpoints.collect::<Vec<_>>());
        let slice = slice("web", &number.to_string()).set("endpoints", endpoints);
        let slice = slice.port(if number == 0 { "http" } else { "last" }, "TCP", 8_000);
        // Each endpoint counts with each number.
        (0..100).fold(slice, |slice, more| slice.port("wide", "TCP", 8_000 + more))
    });
    let slices: Vec<Builder> = slices.collect();
    let problems = cluster.apply(slices.iter().chain([&balanced]));
    assert_eq!(fields(&problems), ["Service ns/web: spec.ports"]);
    assert!(
        problems[0].message.starts_with("the IPv4 endpoints of 1 of the ports"),
        "{problems:?}"
    );
    let count = |port: &str| cluster.port("web", port).cluster.len();
    assert_eq!(["http", "wide", "last"].map(count), [1_000, 0, 49_000]);
    let checks = &cluster.tracker.state().health_checks;
    assert_eq!(checks.values().next().unwrap().local_endpoints.v4, Some(50_000));
    cluster.apply(&[balanced.set("spec.ports.1.name", "none")]);
    assert_eq!(cluster.tracker.problems().count(), 0);
}

#[test]
fn problems_name_object_and_field() {
    for (field, broken, still_served) in [
        ("spec.clusterIPs[0]", web().set("spec.clusterIPs", json!(["10.0.0.256"])), false),
        ("spec.clusterIPs[0]", web().set("spec.clusterIPs", json!(["127.0.0.1"])), false),
        ("spec.clusterIPs[0]", web().set("spec.clusterIPs", json!(["0.0.0.0"])), false),
        (
            "spec.clusterIP",
            web().set("spec.clusterIPs", json!([])).set("spec.clusterIP", "x"),
            false,
        ),
        ("spec.type", web().set("spec.type", "Magic"), true),
        ("spec.externalIPs[1]", web().set("spec.externalIPs", json!(["192.0.2.1", "x"])), true),
        ("spec.externalIPs[0]", web().set("spec.externalIPs", json!(["169.254.1.1"])), true),
        ("spec.externalIPs[0]", web().set("spec.externalIPs", json!(["fe80::1%eth0"])), true),
        ("spec.externalIPs[0]", web().set("spec.externalIPs", json!(["255.255.255.255"])), true),
        ("status.loadBalancer.ingress[0].ip", web().ingress("x"), true),
        ("status.loadBalancer.ingress[0].ip", web().ingress("127.0.0.1"), true),
        (
            "status.loadBalancer.ingress[0].ipMode",
            web().ingress("192.0.2.7").set("status.loadBalancer.ingress.0.ipMode", "Odd"),
            true,
        ),
        (
            "spec.loadBalancerSourceRanges[1]",
            web().set("spec.loadBalancerSourceRanges", json!(["10.0.0.0/8", "10.0.0.0"])),
            true,
        ),
        (
            "spec.externalTrafficPolicy",
            {
                let policy = web().set("spec.externalTrafficPolicy", "Nearest");
                policy.set("spec.externalIPs", json!(["192.0.2.1"]))
            },
            true,
        ),
        ("spec.internalTrafficPolicy", web().set("spec.internalTrafficPolicy", "Nearest"), true),
        ("spec.sessionAffinity", web().set("spec.sessionAffinity", "Cookie"), true),
        ("spec.sessionAffinityConfig.clientIP.timeoutSeconds", affine(json!(0)), true),
        ("spec.sessionAffinityConfig.clientIP.timeoutSeconds", affine(json!(86_401)), true),
        ("spec.ports[1].name", web().port("b\"; drop", "TCP", 81), true),
        ("spec.ports[1].name", web().port(&"x".repeat(64), "TCP", 81), true),
        ("spec.ports[1].name", web().port("http", "TCP", 81), true),
        ("spec.ports[1].protocol", web().port("b", "tcp", 81), true),
        ("spec.ports[1].port", web().port("b", "TCP", 0), true),
        ("spec.ports[1].port", web().port("b", "TCP", 65_536), true),
        ("spec.ports[1].port", web().port("b", "TCP", -1), true),
        ("spec.ports[0].nodePort", web().node_port(65_536), true),
        ("metadata.name", web().set("metadata.name", "a b"), false),
        ("metadata.name", web().set("metadata.name", "a\n\u{1b}[31m"), false),
        ("metadata.name", web().set("metadata.name", "x".repeat(254)), false),
        ("metadata.namespace", web().set("metadata.namespace", "ns\""), false),
    ] {
        let mut cluster = Cluster::new();
        let problems = cluster.apply([&broken]);
        let [problem] = problems.as_slice() else { panic!("{field}: {problems:?}") };
        assert_eq!((problem.field.as_str(), &problem.object), (field, &broken.key()));
        let text = problem.to_string();
        assert!(text.starts_with(&format!("Service {}", &broken.key().to_string()[8..])), "{text}");
        assert!(!text.contains(char::is_control), "{text}");
        assert_eq!(cluster.programmed().is_empty(), !still_served, "{text}");
        // Said once, and again only after it was right in between.
        assert_eq!(cluster.apply([&broken]), [], "{text}");
        cluster.delete([&broken]);
        assert_eq!(cluster.apply(&[broken]), problems, "{text}");
    }
}

fn affine(seconds: serde_json::Value) -> Builder {
    web()
        .set("spec.sessionAffinity", "ClientIP")
        .set("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds)
}

#[test]
fn affinity_has_the_apis_default_and_limits() {
    for (seconds, expected) in [(json!(null), 10_800), (json!(7), 7), (json!(99_999_999), 86_400)] {
        let mut cluster = Cluster::new();
        cluster.apply(&[affine(seconds)]);
        assert_eq!(cluster.port("web", "http").affinity, Some(Duration::from_secs(expected)));
    }
}

#[test]
fn a_backend_that_remembers_no_clients_serves_without() {
    let mut cluster = Cluster::new();
    let capabilities = Capabilities::KUBE_PROXY.without_affinity();
    cluster.tracker.set_capabilities(capabilities, Mode::IPTABLES);
    let problems = cluster.apply(&[web().set("spec.sessionAffinity", "ClientIP")]);
    assert_eq!(fields(&problems), ["Service ns/web: spec.sessionAffinity"]);
    assert!(problems[0].message.starts_with("clients cannot be remembered in iptables mode, "));
    assert_eq!(cluster.port("web", "http").affinity, None);
    assert_eq!(cluster.tracker.degraded().len(), 1);
}

#[test]
fn a_bad_port_leaves_the_others() {
    let mut cluster = Cluster::new();
    let mixed = service("mixed", "10.0.0.1")
        .port("a", "TCP", 80)
        .port("b", "QUIC", 443)
        .port("c", "", 81)
        .port("a", "UDP", 80);
    assert_eq!(fields(&cluster.apply(&[mixed])), ["Service ns/mixed: spec.ports[1].protocol"]);
    assert_eq!(
        cluster.programmed(),
        ["ns/mixed:a (TCP, IPv4)", "ns/mixed:a (UDP, IPv4)", "ns/mixed:c (TCP, IPv4)"]
    );
}

#[test]
fn many_mistakes_in_an_object_are_a_few_problems() {
    let mut cluster = Cluster::new();
    let texts: Vec<String> = (0..1000).map(|i| format!("bad-{i}")).collect();
    assert_eq!(cluster.apply(&[web().set("spec.externalIPs", json!(texts))]).len(), 8);
}

#[test]
fn source_ranges_guard_load_balancer_addresses_only() {
    let node = node("node-1", "10.9.0.1");
    let ranges = |texts: &[&str]| {
        web()
            .node_port(30080)
            .ingress("192.0.2.7")
            .set("spec.externalIPs", json!(["192.0.2.7", "192.0.2.9"]))
            .set("spec.loadBalancerSourceRanges", json!(texts))
    };
    for (texts, expected) in [
        (&[][..], None),
        (&["10.0.0.0/16"][..], Some(vec!["10.0.0.0/16"])),
        // Sorted, without overlaps, neighbours merged.
        (
            &["10.2.0.0/16", "10.0.0.0/24", "10.0.0.9/32", "10.0.1.0/24"][..],
            Some(vec!["10.0.0.0/23", "10.2.0.0/16"]),
        ),
        // Open to all: no filter at all.
        (&["10.0.0.0/16", "0.0.0.0/0"][..], None),
        (&["0.0.0.0/1", "128.0.0.0/1"][..], None),
        // Ranges of the other family only: open.
        (&["2001:db8::/32"][..], None),
        (&["::/0", "10.0.0.0/16"][..], Some(vec!["10.0.0.0/16"])),
        // The node is within: so is what it sends from the address itself.
        (&["10.9.0.0/24"][..], Some(vec!["10.9.0.0/24", "192.0.2.7/32"])),
    ] {
        let mut cluster = Cluster::new();
        cluster.apply(&[ranges(texts), node.clone()]);
        let expected = expected
            .map(|nets| nets.iter().map(|net| net.parse().unwrap()).collect::<Arc<[IpNet]>>());
        for frontend in &cluster.port("web", "http").frontends {
            let wanted = match frontend.at {
                FrontendAddress::LoadBalancerIp(_) => expected.clone(),
                at => {
                    assert_ne!(at, FrontendAddress::ExternalIp("192.0.2.7".parse().unwrap()));
                    None
                }
            };
            assert_eq!(frontend.allowed_sources, wanted, "{texts:?}: {frontend:?}");
        }
    }
    // None that can be read is not none, of the family that they look like.
    for (texts, count, is_served) in [
        (&["203.0.113.7", "10.0.0.0/33"][..], 3, false),
        (&["203.0.113.7", "2001:db8::/32"], 2, false),
        (&["office", "2001:db8::/32"], 2, false),
        (&["office", "0.0.0.0/0"], 2, true),
        (&["2001:db8::/129"], 2, true),
    ] {
        let mut cluster = Cluster::new();
        let problems = cluster.apply(&[ranges(texts), node.clone()]);
        assert_eq!(problems.len(), count, "{problems:?}");
        let frontends = &cluster.port("web", "http").frontends;
        // Nor as the external IP that it is, too.
        let guarded = Some("192.0.2.7".parse().unwrap());
        let is_guarded = |frontend: &Frontend| frontend.at.ip() == guarded;
        assert_eq!(frontends.iter().any(is_guarded), is_served, "{texts:?}: {frontends:?}");
    }
}

#[test]
fn the_nodes_address_decides_about_source_ranges_as_it_changes() {
    let mut cluster = Cluster::new();
    let guarded =
        web().ingress("192.0.2.7").set("spec.loadBalancerSourceRanges", json!(["10.9.0.0/24"]));
    cluster.apply(&[guarded]);
    let count = |cluster: &Cluster| {
        let port = cluster.port("web", "http");
        port.frontends[1].allowed_sources.as_ref().map(|sources| sources.len())
    };
    assert_eq!(count(&cluster), Some(1));
    cluster.take_changes();
    cluster.apply(&[node("node-1", "10.9.0.1")]);
    assert_eq!(count(&cluster), Some(2));
    assert_eq!(cluster.take_changes(), ["ns/web:http (TCP, IPv4)"]);
    cluster.apply(&[node("node-2", "10.8.0.1")]);
    assert_eq!(cluster.take_changes(), [""; 0]);
    cluster.apply(&[node("node-1", "10.8.0.1")]);
    assert_eq!(count(&cluster), Some(1));
    // bindAddress wins over what the Node says.
    let mut bound = Cluster::with(|config| config.bind_address = "10.9.0.7".parse().ok());
    bound.apply(&[
        node("node-1", "10.8.0.1"),
        web().ingress("192.0.2.7").set("spec.loadBalancerSourceRanges", json!(["10.9.0.0/24"])),
    ]);
    assert_eq!(count(&bound), Some(2));
}

#[test]
fn ports_are_found_by_name_and_protocol() {
    let mut cluster = Cluster::new();
    let dns = service("dns", "10.0.0.1").port("dns", "UDP", 53).port("dns", "TCP", 53);
    let of = slice("dns", "1")
        .port("dns", "UDP", 5353)
        .port("dns", "TCP", 5300)
        .endpoint(endpoint("10.1.0.1", "node-1"));
    cluster.apply(&[dns, of]);
    let udp = cluster.find(&id_of("dns", "dns", Protocol::Udp, IpFamily::V4)).unwrap();
    assert_eq!(udp.cluster[0].address.to_string(), "10.1.0.1:5353");
    assert_eq!(cluster.port("dns", "dns").cluster[0].address.to_string(), "10.1.0.1:5300");
    assert_eq!(cluster.find(&id("dns", "")), None);
}
