//! The clients that Services with ClientIP affinity remember, while endpoints, timeouts and
//! programs come and go. Clients are put into the maps by `nft`, as rules would put them there.

use std::{
    fs::{self, Permissions},
    net::Ipv4Addr,
    ops::ControlFlow,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use switchyard_core::{
    objects::Event,
    testing::{Builder, NODE, endpoint, service, slice, until},
};
use switchyard_kernel::nftables::{
    Element, ElementDump, Elements, Family, Key, Operation, OperationKind, SetDef, Table,
    Transaction, Value, json::JsonTransport, testing::InterceptingTransport,
};

use crate::common::{
    Node, clients, config, fail_if, in_namespace, intercepted, netlink, nft, open, over, recorded,
    refused, ruleset, run_nft, start, web, web_slice, with_node,
};

/// The part of names that kube-proxy, and this backend, make for the Service port.
const BASE: &str = "KBDI3LGB-ns/sticky/tcp/http";

fn sticky(timeout: u32) -> Event {
    service("sticky", "10.96.0.7,fd00:10:96::7")
        .port("http", "TCP", 80)
        .set("spec.sessionAffinity", "ClientIP")
        .set("spec.sessionAffinityConfig.clientIP.timeoutSeconds", timeout)
        .apply()
}

/// A slice with the endpoints 10.244.N.M, numbered from 1.
fn endpoints(numbers: impl IntoIterator<Item = u16>) -> Event {
    let made = slice("sticky", "a").port("http", "TCP", 80);
    let address = |number: u16| format!("10.244.{}.{}", number >> 8, number & 0xff);
    let endpoints = numbers.into_iter().map(|number| endpoint(&address(number), "elsewhere"));
    endpoints.fold(made, |made, endpoint| made.endpoint(endpoint)).apply()
}

/// Has the Service remember a client for so many seconds.
fn remember(client: &str, number: u16, seconds: u32) {
    let endpoint = format!("10.244.{}.{} . 80", number >> 8, number & 0xff);
    let map = clients();
    nft(&format!("add element ip kube-proxy {map} {{ {client} expires {seconds}s : {endpoint} }}"));
}

/// Has the Service remember this many clients at an endpoint.
fn remember_many(count: u32, number: u16) {
    let many: Vec<String> = (0..count)
        .map(|n| format!("{} : 10.244.0.{number} . 80", Ipv4Addr::from(0xac10_0000 + n)))
        .collect();
    nft(&format!("add element ip kube-proxy {} {{ {} }}", clients(), many.join(", ")));
}

fn table() -> Table {
    Table::new(Family::Ip, "kube-proxy")
}

/// The definition of a map as the kernel has it.
fn definition(map: &str) -> Arc<SetDef> {
    let dump = netlink().read(&table(), Elements::Omit).expect("readable").expect("a table");
    dump.sets[map].definition.clone().expect("a map").into()
}

/// The clients that are remembered, sorted: with the number of seconds that remain, and the
/// endpoint.
fn remembered() -> Vec<(String, u64, String)> {
    remembered_by(&clients())
}

/// The clients in the map of a timeout in seconds.
fn remembered_in(timeout: u32) -> Vec<(String, u64, String)> {
    remembered_by(&format!("clients-{timeout}s-{BASE}"))
}

fn remembered_by(map: &str) -> Vec<(String, u64, String)> {
    let map = definition(map);
    let mut found = Vec::new();
    let mut visit = |client: ElementDump| {
        let seconds = client.expires.expect("a time").as_secs();
        let element = client.element.display(&map).to_string();
        let (client, endpoint) = element.split_once(" : ").expect("an endpoint");
        found.push((client.to_owned(), seconds, endpoint.to_owned()));
        ControlFlow::Continue(())
    };
    assert!(netlink().scan_elements(&table(), &map, &mut visit).expect("readable"));
    found.sort();
    found
}

/// Whether a client is remembered at an endpoint.
fn is_remembered_at(number: u16) -> bool {
    let wanted = format!("10.244.0.{number} . 80");
    remembered().iter().any(|(_, _, endpoint)| *endpoint == wanted)
}

fn names(found: &[(String, u64, String)]) -> Vec<&str> {
    found.iter().map(|(client, ..)| client.as_str()).collect()
}

#[test]
fn clients_of_endpoints_that_left_are_forgotten() {
    with_node(|mut node| {
        node.sync([sticky(10_800), endpoints([1, 2, 3])]);
        for (client, number) in [("10.0.0.1", 1), ("10.0.0.2", 2), ("10.0.0.3", 3), ("10.0.0.4", 2)]
        {
            remember(client, number, 3_000);
        }
        // An endpoint that comes is no one's loss.
        node.sync([endpoints([1, 2, 3, 4])]);
        assert_eq!(remembered().len(), 4);
        node.sync([endpoints([1, 3, 4])]);
        until("clients are forgotten", || names(&remembered()) == ["10.0.0.1", "10.0.0.3"]);
        // The same when everything is compared.
        node.apply([endpoints([3, 4])]);
        node.tracker.request_resync();
        node.try_sync().expect("a sync");
        until("clients are forgotten", || names(&remembered()) == ["10.0.0.3"]);
        let found = remembered();
        assert_eq!(found[0].2, "10.244.0.3 . 80");
        assert!(found[0].1 > 2_900, "the time goes on: {found:?}");
    });
}

/// A flood of connections: clients come all the time, and more than can be read at once.
#[test]
fn no_sync_waits_for_clients() {
    with_node(|mut node| {
        node.sync([sticky(10_800), endpoints([1, 2])]);
        // The kernel's default is 65,535.
        assert!(nft(&format!("list map ip kube-proxy {}", clients())).contains("size 524288"));
        remember_many(70_000, 2);
        let stop = AtomicBool::new(false);
        let (table, map, mut flood) = (table(), definition(&clients()), netlink());
        thread::scope(|scope| {
            scope.spawn(|| {
                for client in 0..20_000u32 {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = Key::new().address(Ipv4Addr::from(0x0b00_0000 + client).into());
                    let at = Value::new().address(Ipv4Addr::new(10, 244, 0, 1).into()).port(80);
                    let mut transaction = Transaction::new();
                    transaction.add_elements(&table, &map, vec![Element::value(key, at)]);
                    flood.commit(&transaction).expect("a client");
                    thread::sleep(Duration::from_millis(2));
                }
            });
            // Syncs of changes, of everything, and of a program that starts.
            for proxy in 0..2 {
                node.sync([endpoints([1])]);
                let other = service(&format!("other-{proxy}"), &format!("10.96.1.{proxy}"));
                node.sync([other.port("http", "TCP", 80).apply()]);
                node.full();
                node.sync([endpoints([1, 2])]);
                assert_eq!(node.restart(open()).added, 0);
            }
            let report = node.sync([endpoints([1])]);
            assert!(report.messages < 50, "{report:?}");
            until("clients are forgotten", || !is_remembered_at(2));
            stop.store(true, Ordering::Relaxed);
        });
        assert!(is_remembered_at(1), "the others are remembered");
    });
}

/// A client unknown to a sweep: a client that comes after the map was read, before the endpoint
/// leaves the set of the pool's endpoints; a crash between the commit and the sweep.
#[test]
fn a_start_forgets_clients_of_endpoints_that_left() {
    with_node(|mut node| {
        node.sync([sticky(10_800), endpoints([1, 2])]);
        node.sync([endpoints([1])]);
        drop(node);
        remember("10.0.0.2", 2, 3_000);
        remember("10.0.0.1", 1, 3_000);
        let mut node = start(config());
        node.sync([sticky(10_800), endpoints([1])]);
        until("clients are forgotten", || names(&remembered()) == ["10.0.0.1"]);
    });
}

/// It is unknown then which of the changes were committed.
#[test]
fn clients_are_forgotten_though_the_answer_was_lost() {
    in_namespace(|| {
        let is_lost = Arc::new(AtomicBool::new(false));
        let loses = is_lost.clone();
        let hook = move |transaction: &Transaction| {
            let deletes = |kind: &OperationKind| matches!(kind, OperationKind::DeleteElements(..));
            let removes = transaction.operations().iter().any(|made| deletes(&made.kind));
            if !removes || !loses.swap(false, Ordering::Relaxed) {
                return Ok(());
            }
            netlink().commit(transaction).expect("a commit");
            Err(switchyard_kernel::netlink::Error::NoAnswer.into())
        };
        let mut node = Node::new(config(), intercepted(hook));
        // The chain for one endpoint is there, so that one transaction is all.
        node.sync([web()[0].clone(), web_slice(&[1]), sticky(10_800), endpoints([1, 2])]);
        remember("10.0.0.2", 2, 3_000);
        is_lost.store(true, Ordering::Relaxed);
        node.apply([endpoints([1])]);
        node.try_sync().expect_err("no answer");
        node.full();
        until("clients are forgotten", || remembered().is_empty());
    });
}

/// Its chains and sets are made before its elements are refused.
#[test]
fn a_refused_port_costs_no_look_at_clients_of_others() {
    in_namespace(|| {
        let of_frontend = |made: &Operation| {
            let OperationKind::AddElements(_, elements) = &made.kind else { return None };
            let mut keys = elements.iter().map(|element| element.key);
            keys.find(|key| key.as_slice().starts_with(&[10, 96, 0, 9])).map(Some)
        };
        let hook = move |made: &Transaction| refused(made, libc::EINVAL, of_frontend);
        let mut node = Node::new(config(), intercepted(hook));
        let like = |name: &str, ip: &str, endpoints: &[&str]| {
            let made = slice(name, "a").port("http", "TCP", 80);
            let add = |made: Builder, ip: &&str| made.endpoint(endpoint(ip, "elsewhere"));
            let made = endpoints.iter().fold(made, add);
            let service = service(name, ip).port("http", "TCP", 80);
            [service.set("spec.sessionAffinity", "ClientIP").apply(), made.apply()]
        };
        node.sync([sticky(10_800), endpoints([1, 2])]);
        // Whoever looks at the clients forgets this one.
        remember("10.0.0.9", 9, 3_000);
        let report = node.sync(like("refused", "10.96.0.9", &["10.244.9.1"]));
        assert_eq!(report.degraded.len(), 1, "{:?}", report.degraded);
        // Clients of another Service port are looked at after that.
        node.sync(like("other", "10.96.0.8", &["10.244.8.1", "10.244.8.2"]));
        let maps = nft("list maps ip");
        let is_its = |name: &&str| name.starts_with("clients-") && name.contains("-ns/other/");
        let map = maps.split_whitespace().find(is_its).expect("a map of clients").to_owned();
        nft(&format!("add element ip kube-proxy {map} {{ 10.0.0.1 : 10.244.8.2 . 80 }}"));
        node.sync(like("other", "10.96.0.8", &["10.244.8.1"]));
        until("a client is forgotten", || remembered_by(&map).is_empty());
        assert_eq!(names(&remembered()), ["10.0.0.9"]);
    });
}

#[test]
fn another_timeout_keeps_clients() {
    with_node(|mut node| {
        node.sync([sticky(10_800), endpoints([1, 2, 3])]);
        remember_many(70_000, 1);
        remember("10.0.0.2", 2, 3_000);
        let looked_up = || -> Vec<String> {
            let listed = nft(&format!("list chain ip kube-proxy service-{BASE}"));
            let map = |line: &str| Some(line.split_once("ip saddr map @clients-")?.1.to_owned());
            let maps = listed.lines().filter_map(map);
            maps.filter_map(|map| Some(map.split_once('-')?.0.to_owned())).collect()
        };
        // Clients are looked up in the map of the new timeout, then in the earlier one. Going back
        // is as good: the clients are still there.
        for (timeout, maps) in
            [(60, ["60s", "10800s"]), (10_800, ["10800s", "60s"]), (7_200, ["7200s", "10800s"])]
        {
            let report = node.sync([sticky(timeout)]);
            assert_eq!(looked_up(), maps);
            assert!(report.messages < 50, "nothing is copied: {report:?}");
            let most = Duration::from_secs(timeout.min(10_800).into());
            assert!(report.requeue_after.is_some_and(|wait| wait <= most), "{report:?}");
            assert_eq!(remembered_in(10_800).len(), 70_001);
        }
        // Endpoints that leave are forgotten in both.
        node.sync([endpoints([1, 3])]);
        until("clients are forgotten", || remembered_in(10_800).len() == 70_000);
        // The same after a restart, and when everything is compared.
        assert_eq!(node.restart(open()).added, 0);
        let drift = node.full().drift;
        assert!(drift.is_none(), "{drift:?}");
        node.apply([sticky(500)]);
        node.tracker.request_resync();
        node.try_sync().expect("a sync");
        assert_eq!(looked_up(), ["500s", "7200s"]);
        // Without affinity, all maps go.
        node.sync([service("sticky", "10.96.0.7,fd00:10:96::7").port("http", "TCP", 80).apply()]);
        assert!(!ruleset().contains("map clients-"), "{}", ruleset());
    });
}

#[test]
fn earlier_clients_are_looked_up_for_as_long_as_they_may_be_remembered() {
    with_node(|mut node| {
        node.sync([sticky(10_800), endpoints([1, 2])]);
        let wait = node.sync([sticky(1)]).requeue_after.expect("a revisit");
        assert!(ruleset().contains("map clients-10800s-"));
        thread::sleep(wait + Duration::from_millis(50));
        // What the runner does then.
        let report = node.sync([]);
        assert_eq!(report.requeue_after, None);
        assert!(!ruleset().contains("clients-10800s-"), "{}", ruleset());
        assert!(node.full().drift.is_none());
    });
}

/// Each Service port is compared once: what is deleted twice is refused.
#[test]
fn earlier_clients_are_no_longer_looked_up_after_the_node_changed_too() {
    in_namespace(|| {
        let (mut node, recorded) = recorded(config());
        let with_pods = |cidr: &str| {
            switchyard_core::testing::node(NODE, "192.168.0.1")
                .set("spec.podCIDRs", vec![cidr])
                .apply()
        };
        node.sync([sticky(10_800), endpoints([1, 2]), with_pods("10.244.0.0/24")]);
        let wait = node.sync([sticky(1)]).requeue_after.expect("a revisit");
        thread::sleep(wait + Duration::from_millis(50));
        recorded.take();
        node.sync([with_pods("10.244.7.0/24")]);
        assert!(!ruleset().contains("clients-10800s-"), "{}", ruleset());
        let committed = recorded.take().concat();
        let deletes =
            |line: &&str| line.starts_with("delete ") && line.contains("ip kube-proxy clients-");
        assert_eq!(committed.lines().filter(deletes).count(), 1, "{committed}");
    });
}

/// Maps of several timeouts, which a program that ended had no time to delete.
#[test]
fn the_last_of_several_earlier_maps_is_looked_up() {
    for timeouts in [[60, 500], [500, 60]] {
        in_namespace(|| {
            nft("add table ip kube-proxy");
            for timeout in timeouts {
                nft(&format!(
                    "add map ip kube-proxy clients-{timeout}s-{BASE} {{ \
                     typeof ip saddr : ip daddr . tcp dport; flags dynamic,timeout; \
                     timeout {timeout}s; }}"
                ));
            }
            let mut node = start(config());
            node.sync([sticky(10_800), endpoints([1])]);
            let listed = nft(&format!("list chain ip kube-proxy service-{BASE}"));
            let [first, last] = timeouts;
            assert!(listed.contains(&format!("@clients-{last}s-{BASE}")), "{listed}");
            assert!(!ruleset().contains(&format!("clients-{first}s-")), "{}", ruleset());
        });
    }
}

/// kube-proxy has a set and a chain for each endpoint.
#[test]
fn clients_of_kube_proxy_are_taken_over() {
    in_namespace(|| {
        nft(&format!("add table ip kube-proxy; {}{}{}", theirs(1), theirs(2), theirs(9)));
        // Clients that cannot be read are not worth a sync.
        let transport = InterceptingTransport::new(netlink(), |_| Ok(()));
        let transport = transport.reading(|_, set| match set {
            Some(_) => fail_if(true),
            None => Ok(()),
        });
        Node::new(config(), over(Box::new(transport))).sync(web());
        nft(&format!("add table ip kube-proxy; {}{}{}", theirs(1), theirs(2), theirs(9)));
        let mut node = start(config());
        let report = node.sync([sticky(10_800), endpoints([1, 2, 3])]);
        assert!(report.drift.is_none(), "{:?}", report.drift);
        let found = remembered();
        // The endpoint 9 is gone.
        assert_eq!(names(&found), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(found[1].2, "10.244.0.2 . 80");
        assert!(found.iter().all(|(_, seconds, _)| (3_500..=3_600).contains(seconds)), "{found:?}");
        let listed = ruleset();
        assert!(!listed.contains("affinity-") && !listed.contains("chain endpoint-"), "{listed}");
        // A restart finds its own map, and changes nothing.
        let report = node.restart(open());
        assert_eq!((report.added, report.bytes), (0, 0), "{report:?}");
    });
}

#[test]
fn the_program_lists_the_clients_of_kube_proxy_with_their_table() {
    let Some(program) = test_netns::nft_trixie(Path::new(env!("CARGO_TARGET_TMPDIR"))) else {
        return;
    };
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let [runs, counting] = ["nft-runs", "nft-that-logs"].map(|name| dir.join(name));
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> {}\nexec {} \"$@\"\n",
        runs.display(),
        program.display()
    );
    fs::write(&counting, script).expect("written");
    fs::set_permissions(&counting, Permissions::from_mode(0o755)).expect("executable");
    in_namespace(|| {
        nft(&format!("add table ip kube-proxy; {}{}{}", theirs(1), theirs(2), theirs(9)));
        let transport = JsonTransport::with_program(&counting).expect("nft takes our maps");
        let proxier = over(Box::new(transport));
        let mut node = Node::new(config(), proxier);
        fs::write(&runs, "").expect("written");
        node.sync([sticky(10_800), endpoints([1, 2, 3])]);
        let runs = fs::read_to_string(&runs).expect("read");
        assert!(!runs.contains("list set") && !runs.contains("list map"), "{runs}");
        let listed = run_nft(&program, &format!("list map ip kube-proxy clients-10800s-{BASE}"));
        assert!(["10.0.0.1", "10.0.0.2"].iter().all(|client| listed.contains(client)), "{listed}");
    });
}

/// The objects of kube-proxy for an endpoint, with one client.
fn theirs(number: u16) -> String {
    let base = kube_proxys_base(number);
    format!(
        "add set ip kube-proxy affinity-{base} \
         {{ type ipv4_addr; flags dynamic,timeout; timeout 3h; }}; \
         add chain ip kube-proxy endpoint-{base}; \
         add rule ip kube-proxy endpoint-{base} update @affinity-{base} {{ ip saddr }}; \
         add element ip kube-proxy affinity-{base} {{ 10.0.0.{number} expires 1h }}; "
    )
}

/// kube-proxy's name for an endpoint, as it printed the names once.
fn kube_proxys_base(number: u16) -> String {
    let hash = match number {
        1 => "2YCT35UB",
        2 => "LVVPSCTX",
        _ => "JCTE6IOF",
    };
    format!("{hash}-ns/sticky/tcp/http__10.244.0.{number}/80")
}

#[test]
fn the_number_of_chains_and_sets_does_not_depend_on_the_number_of_endpoints() {
    let counts = |listed: &str| {
        ["\tchain ", "\tset ", "\tmap ", "\t\tct state"].map(|kind| listed.matches(kind).count())
    };
    let listings = [9u16, 10_000].map(|count| {
        in_namespace(|| {
            start(config()).sync([sticky(10_800), endpoints(1..=count)]);
            let listed = ruleset();
            assert!(listed.contains(&format!("10.96.0.7 . 80 . {} : ", count - 1)));
            listed
        })
    });
    assert_eq!(counts(&listings[0]), counts(&listings[1]));
}

/// A client that another program's rules led elsewhere must not stay there.
#[test]
fn endpoints_of_others_are_not_remembered_for_long() {
    with_node(|mut node| {
        node.sync([sticky(10_800), endpoints([1])]);
        let map = clients();
        nft(&format!("add element ip kube-proxy {map} {{ 10.0.0.1 : 192.0.2.1 . 80 }}"));
        let compared = node.full();
        assert!(compared.drift.is_none(), "clients are no drift: {:?}", compared.drift);
        assert_eq!(node.restart(open()).added, 0);
        until("clients are forgotten", || remembered().is_empty());
        // The set of endpoints is compared, too.
        nft(&format!("flush set ip kube-proxy endpoints-{BASE}"));
        let drift = node.full().drift;
        assert!(drift.examples[0].contains("10.244.0.1 . tcp . 80"), "{drift:?}");
        assert!(nft(&format!("list set ip kube-proxy endpoints-{BASE}")).contains("10.244.0.1"));
    });
}
