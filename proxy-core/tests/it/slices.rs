//! EndpointSlices: whose they are, which of their entries count, and duplicates.

use serde_json::{Value, json};
use switchyard_core::{
    model::{IpFamily, Protocol},
    testing::{Builder, endpoint, service, slice},
};

use crate::support::{Cluster, fields, id_of, pool, web};

const HERE: &str = "node-1";
const THERE: &str = "node-2";

fn of_web(suffix: &str) -> Builder {
    slice("web", suffix).port("", "TCP", 8080)
}

/// An endpoint elsewhere, with conditions given as `ready serving terminating`.
fn with(ip: &str, conditions: [Option<bool>; 3]) -> Value {
    let mut made = endpoint(ip, THERE);
    let [ready, serving, terminating] = conditions;
    made["conditions"] = json!({"ready": ready, "serving": serving, "terminating": terminating});
    made
}

#[test]
fn several_slices_make_one_pool() {
    let mut cluster = Cluster::new();
    cluster.apply(&[
        of_web("b").endpoint(endpoint("10.1.0.2", HERE)).endpoint(endpoint("10.1.0.1", THERE)),
        web(),
        of_web("a").endpoint(endpoint("10.1.0.3", THERE)),
        slice("web", "c").port("", "TCP", 9090).endpoint(endpoint("10.1.0.1", THERE)),
    ]);
    let expected = "10.1.0.1:8080 10.1.0.1:9090 10.1.0.2:8080* 10.1.0.3:8080";
    assert_eq!(pool(&cluster.port("web", "").cluster), expected);
    cluster.delete(&[of_web("b")]);
    assert_eq!(pool(&cluster.port("web", "").cluster), "10.1.0.1:9090 10.1.0.3:8080");
    // Deleting what is unknown is nothing.
    cluster.take_changes();
    cluster.delete(&[of_web("b"), of_web("z")]);
    assert_eq!(cluster.take_changes(), [""; 0]);
}

#[test]
fn each_port_has_its_numbers_of_each_slice() {
    let mut cluster = Cluster::new();
    let names = ["a", "b", "c"];
    let of_web = |suffix, numbers: [i64; 3]| {
        let slice = slice("web", suffix).endpoint(endpoint("10.1.0.1", THERE));
        names
            .iter()
            .zip(numbers)
            .fold(slice, |slice, (name, number)| slice.port(name, "TCP", number))
    };
    let web =
        service("web", "10.0.0.1").port("a", "TCP", 1).port("b", "TCP", 2).port("c", "TCP", 3);
    let alone = of_web("3", [0, 0, 5]).endpoint(endpoint("10.1.0.2", THERE));
    cluster.apply(&[web, of_web("1", [1, 2, 9]), of_web("2", [1, 4, 3]), alone]);
    let pools = names.map(|name| pool(&cluster.port("web", name).cluster));
    let of_c = "10.1.0.1:3 10.1.0.1:5 10.1.0.1:9 10.1.0.2:5";
    assert_eq!(pools, ["10.1.0.1:1", "10.1.0.1:2 10.1.0.1:4", of_c]);
    // The API server takes one number of a name in a slice, manifests may have more.
    let repeated = (1..=150)
        .rev()
        .chain([1])
        .fold(slice("web", "1"), |slice, number| slice.port("a", "TCP", number));
    let problems = cluster.apply(&[repeated.endpoint(endpoint("10.1.0.3", THERE))]);
    assert_eq!(fields(&problems), ["EndpointSlice ns/web-1: ports"]);
    let numbers: Vec<u16> =
        cluster.port("web", "a").cluster.iter().map(|e| e.address.port()).collect();
    assert_eq!(numbers[1..], (1..=100).collect::<Vec<u16>>(), "beside that of the other slice");
}

#[test]
fn a_slice_may_move_to_another_service() {
    let mut cluster = Cluster::new();
    let moving = of_web("1").endpoint(endpoint("10.1.0.1", HERE));
    let other = service("other", "10.0.0.2").port("", "TCP", 80);
    cluster.apply(&[web(), other.clone(), moving.clone()]);
    cluster.take_changes();
    let label = "kubernetes.io/service-name";
    cluster.apply(&[moving.clone().label(label, "other")]);
    assert_eq!(pool(&cluster.port("web", "").cluster), "");
    assert_eq!(pool(&cluster.port("other", "").cluster), "10.1.0.1:8080*");
    assert_eq!(cluster.take_changes(), ["ns/other (TCP, IPv4)", "ns/web (TCP, IPv4)"]);
    // And to none: by no label, an empty one, or as a headless Service's.
    for gone in [
        moving.clone().label(label, json!(null)),
        moving.clone().label(label, ""),
        moving.clone().label(label, "other").label("service.kubernetes.io/headless", ""),
        moving.clone().label(label, "other").set("addressType", "FQDN"),
    ] {
        assert_eq!(cluster.apply(&[gone]), []);
        assert_eq!(pool(&cluster.port("other", "").cluster), "");
        cluster.apply(&[moving.clone().label(label, "other")]);
        assert_eq!(pool(&cluster.port("other", "").cluster), "10.1.0.1:8080*");
    }
    // In another namespace there is another Service of the name.
    cluster.apply(&[of_web("1").set("metadata.namespace", "elsewhere")]);
    assert_eq!(pool(&cluster.port("web", "").cluster), "");
}

#[test]
fn conditions_may_be_absent() {
    let (yes, no) = (Some(true), Some(false));
    for (conditions, is_used) in [
        ([None, None, None], true),
        ([yes, None, None], true),
        ([no, None, None], false),
        ([no, yes, no], false),
        // Absent serving is true: terminating endpoints serve, and nothing else is there.
        ([no, None, yes], true),
        ([no, no, yes], false),
        ([yes, no, yes], true),
    ] {
        let mut cluster = Cluster::new();
        cluster.apply(&[web(), of_web("1").endpoint(with("10.1.0.1", conditions))]);
        let is = !cluster.port("web", "").cluster.is_empty();
        assert_eq!(is, is_used, "{conditions:?}");
    }
    let mut cluster = Cluster::new();
    let mut bare = endpoint("10.1.0.1", HERE);
    bare["conditions"] = Value::Null;
    bare["nodeName"] = Value::Null;
    bare["hints"] = Value::Null;
    cluster.apply(&[web(), of_web("1").endpoint(bare)]);
    assert_eq!(pool(&cluster.port("web", "").cluster), "10.1.0.1:8080");
}

#[test]
fn the_better_of_duplicates_counts() {
    let (yes, no) = (Some(true), Some(false));
    let ready = with("10.1.0.1", [yes, yes, no]);
    let leaving = with("10.1.0.1", [no, yes, yes]);
    let dead = with("10.1.0.1", [no, no, no]);
    // publishNotReadyAddresses
    let undying = with("10.1.0.1", [yes, yes, yes]);
    let leaving_elsewhere = with("10.1.0.2", [no, yes, yes]);
    for (one, two, expected) in [
        // A new pod took over the address of one that is going.
        (&ready, &leaving, "10.1.0.1:8080"),
        (&dead, &ready, "10.1.0.1:8080"),
        (&ready, &ready, "10.1.0.1:8080"),
        // It is there but not ready: the old one does not come back, whatever it says.
        (&dead, &leaving, "10.1.0.2:8080"),
        (&dead, &undying, "10.1.0.2:8080"),
    ] {
        for (one, two) in [(one, two), (two, one)] {
            let elsewhere = of_web("z").endpoint(leaving_elsewhere.clone());
            let mut across = Cluster::new();
            across.apply(&[
                web(),
                elsewhere.clone(),
                of_web("a").endpoint(one.clone()),
                of_web("b").endpoint(two.clone()),
            ]);
            assert_eq!(pool(&across.port("web", "").cluster), expected, "{one} {two}");
            let mut within = Cluster::new();
            let both = of_web("a").endpoint(one.clone()).endpoint(two.clone());
            within.apply(&[web(), elsewhere, both]);
            assert_eq!(within.tracker.state(), across.tracker.state(), "{one} {two}");
        }
    }
}

#[test]
fn ports_without_name_or_number_are_ignored() {
    let mut cluster = Cluster::new();
    let odd = slice("web", "1").endpoint(endpoint("10.1.0.1", HERE)).set(
        "ports",
        json!([
            {"protocol": "TCP", "port": 1},
            {"name": null, "port": 2},
            {"name": "", "port": null},
            {"name": ""},
            {"name": "", "port": 0},
            {"name": "http", "port": 3},
            {"name": "", "protocol": "UDP", "port": 4},
            // No protocol is TCP.
            {"name": "", "port": 8080},
        ]),
    );
    assert_eq!(cluster.apply(&[web(), odd]), []);
    assert_eq!(pool(&cluster.port("web", "").cluster), "10.1.0.1:8080*");
}

#[test]
fn the_first_address_counts_and_the_family_must_fit() {
    let mut cluster = Cluster::new();
    let dual = service("web", "10.0.0.1,fd00::1").port("", "TCP", 80);
    let mut several = endpoint("010.1.0.001", HERE);
    several["addresses"] = json!(["010.1.0.001", "10.1.0.9"]);
    let mut none = endpoint("", HERE);
    none["addresses"] = json!([]);
    let v4 = of_web("4").endpoint(several).endpoint(none).endpoint(endpoint("fd01::9", HERE));
    let v6 = of_web("6").set("addressType", "IPv6").endpoint(endpoint("fd01:0::1", THERE));
    assert_eq!(
        fields(&cluster.apply(&[dual, v4, v6])),
        ["EndpointSlice ns/web-4: endpoints[2].addresses[0]"]
    );
    assert_eq!(pool(&cluster.port("web", "").cluster), "10.1.0.1:8080*");
    let v6 = cluster.find(&id_of("web", "", Protocol::Tcp, IpFamily::V6)).unwrap();
    assert_eq!(pool(&v6.cluster), "[fd01::1]:8080");
}

#[test]
fn addresses_that_reach_into_the_node_are_refused() {
    for ip in [
        "127.0.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "0.0.0.0",
        "0.0.0.5",
        "0.255.255.255",
        "255.255.255.255",
        "::ffff:127.0.0.1",
        "x",
    ] {
        let mut cluster = Cluster::new();
        let bad = of_web("1").endpoint(endpoint(ip, HERE)).endpoint(endpoint("10.1.0.1", HERE));
        assert_eq!(
            fields(&cluster.apply(&[web(), bad.clone()])),
            ["EndpointSlice ns/web-1: endpoints[0].addresses[0]"],
            "{ip}"
        );
        assert_eq!(pool(&cluster.port("web", "").cluster), "10.1.0.1:8080*");
        assert_eq!(cluster.apply(&[bad]), [], "{ip}");
    }
    for ip in ["::1", "fe80::1", "ff02::1", "::"] {
        let mut cluster = Cluster::new();
        let bad = of_web("1").set("addressType", "IPv6").endpoint(endpoint(ip, HERE));
        assert_eq!(cluster.apply(&[bad]).len(), 1, "{ip}");
    }
    // What is a broadcast address depends on the subnet, which only the node's kernel knows.
    for ip in ["1.0.0.0", "10.1.0.0", "10.1.0.255", "255.255.255.254"] {
        let mut cluster = Cluster::new();
        assert_eq!(cluster.apply(&[web(), of_web("1").endpoint(endpoint(ip, HERE))]), [], "{ip}");
    }
}

#[test]
fn a_machine_that_serves_itself_may_have_endpoints_on_loopback() {
    let mut cluster = Cluster::with(|config| config.loopback_endpoints = true);
    let slice = of_web("1").endpoint(endpoint("127.0.0.2", HERE));
    assert_eq!(cluster.apply(&[web(), slice]), []);
    assert_eq!(pool(&cluster.port("web", "").cluster), "127.0.0.2:8080*");
    let other = of_web("1").endpoint(endpoint("169.254.169.254", HERE));
    assert_eq!(fields(&cluster.apply(&[other])).len(), 1, "link-local addresses stay refused");
}

#[test]
fn problems_name_object_and_field() {
    for (field, broken) in [
        ("addressType", of_web("1").set("addressType", "IPX")),
        ("ports[1].protocol", of_web("1").port("", "QUIC", 1)),
        ("ports[1].port", of_web("1").port("", "TCP", 65_536)),
        ("ports[1].port", of_web("1").port("", "TCP", -1)),
        (
            "metadata.labels[kubernetes.io/service-name]",
            of_web("1").label("kubernetes.io/service-name", "a b"),
        ),
    ] {
        let mut cluster = Cluster::new();
        let problems = cluster.apply(&[web(), broken.clone()]);
        let [problem] = problems.as_slice() else { panic!("{field}: {problems:?}") };
        assert_eq!((problem.field.as_str(), &problem.object), (field, &broken.key()));
        assert_eq!(cluster.apply(&[broken]), []);
    }
}

#[test]
fn slices_may_come_before_their_service_and_stay_after_it() {
    let mut cluster = Cluster::new();
    cluster.apply(&[of_web("1").endpoint(endpoint("10.1.0.1", HERE))]);
    assert_eq!(cluster.take_changes(), [""; 0]);
    cluster.apply(&[web()]);
    assert_eq!(pool(&cluster.port("web", "").cluster), "10.1.0.1:8080*");
    cluster.delete(&[web()]);
    assert_eq!(cluster.programmed(), [""; 0]);
    cluster.apply(&[web()]);
    assert_eq!(pool(&cluster.port("web", "").cluster), "10.1.0.1:8080*");
}

/// Slices that people write often name no node: such an endpoint is not one of this node's for any
/// policy, but a connection from it may have to be recognised as its own.
#[test]
fn an_endpoint_without_a_node_may_be_anywhere() {
    let nameless = |ip: &str, name: Option<&str>| {
        let mut made = endpoint(ip, HERE);
        made["nodeName"] = json!(name);
        made
    };
    let mut cluster = Cluster::new();
    cluster.apply(&[
        web(),
        of_web("a")
            .endpoint(nameless("10.1.0.1", Some(HERE)))
            .endpoint(nameless("10.1.0.2", Some(THERE)))
            .endpoint(nameless("10.1.0.3", None))
            .endpoint(nameless("10.1.0.4", Some(""))),
    ]);
    let port = cluster.port("web", "");
    let known: Vec<_> = port.cluster.iter().map(|e| (e.is_local, e.may_be_local)).collect();
    assert_eq!(known, [(true, true), (false, false), (false, true), (false, true)]);
}
