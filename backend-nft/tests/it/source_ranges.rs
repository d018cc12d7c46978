//! Source ranges are elements of a set: what is programmed, what a change sends, what is repaired,
//! and what is taken over.

use std::path::Path;

use switchyard_core::{
    objects::Event,
    testing::{endpoint, service, slice},
};
use switchyard_kernel::nftables::{Transport, json::JsonTransport};

use crate::common::{
    Node, config, in_namespace, netlink, nft, open, over, recorded, ruleset, run_nft, with_node,
};

const ADDRESS: &str = "198.51.100.1";
/// As many ranges as may be a rule each.
const MORE: usize = 8;

/// A load balancer with these source ranges in both families, and with so many more, if there are
/// any, that they are a set.
fn guarded(ranges: &[&str]) -> Vec<Event> {
    let more = if ranges.is_empty() { 0 } else { MORE };
    let v4 = (0..more).map(|n| format!("172.16.{}.0/24", 2 * n));
    let v6 = (0..more).map(|n| format!("fc00:{}::/32", 2 * n));
    load_balancer(ranges.iter().map(|range| (*range).to_owned()).chain(v4).chain(v6).collect())
}

fn load_balancer(ranges: Vec<String>) -> Vec<Event> {
    let service = service("lb", "10.96.0.20,fd00:10:96::20")
        .port("http", "TCP", 80)
        .set("spec.type", "LoadBalancer")
        .set(
            "status.loadBalancer.ingress",
            serde_json::json!([{"ip": ADDRESS}, {"ip": "2001:db8:1::1"}]),
        )
        .set("spec.loadBalancerSourceRanges", ranges);
    let slice =
        slice("lb", "a").port("http", "TCP", 80).endpoint(endpoint("10.244.0.5", "elsewhere"));
    vec![service.apply(), slice.apply()]
}

/// The rules and the elements that are listed of the chain and the set of a family.
fn listed(family: &str) -> (Vec<String>, Vec<String>) {
    parts(&nft(&format!("list table {family} kube-proxy")))
}

fn parts(table: &str) -> (Vec<String>, Vec<String>) {
    let block = |kind: &str| {
        let inside = table.split_once(kind).map(|(_, rest)| rest.split_once("\n\t}").unwrap().0);
        inside.unwrap_or_default().to_owned()
    };
    let rules =
        block("chain firewall-").lines().skip(1).map(|line| line.trim().to_owned()).collect();
    let set = block("set sources-");
    let elements = set.split_once("elements = {").map_or("", |(_, rest)| rest);
    let elements =
        elements.split(',').map(|one| one.trim_matches([' ', '\n', '\t', '}']).to_owned());
    let is_more = |one: &str| one.starts_with("172.16.") || one.starts_with("fc00:");
    (rules, elements.filter(|one| !one.is_empty() && !is_more(one)).collect())
}

const MANY: [&str; 8] = [
    "10.0.0.0/8",
    "10.1.0.0/16",
    "192.0.2.4/30",
    "192.0.2.8/31",
    "240.0.0.0/4",
    "0.0.0.0/8",
    "2001:db8::/33",
    "ff00::/8",
];

#[test]
fn a_chain_has_two_rules_however_many_the_ranges() {
    with_node(|mut node| {
        node.sync(guarded(&MANY));
        let (rules, elements) = listed("ip");
        assert_eq!(rules.len(), 2, "{rules:?}");
        assert!(rules[0].starts_with("ip saddr @sources-") && rules[0].ends_with(" return"));
        assert_eq!(rules[1], "drop");
        assert_eq!(elements, ["0.0.0.0/8", "10.0.0.0/8", "192.0.2.4-192.0.2.9", "240.0.0.0/4"]);
        let (rules, elements) = listed("ip6");
        assert_eq!(rules.len(), 2);
        assert_eq!(elements, ["2001:db8::/33", "ff00::/8"]);
        // What is listed can be loaded, and is what would be programmed.
        let before = ruleset();
        nft("flush ruleset");
        nft(&before);
        assert_eq!(ruleset(), before);
        assert_eq!(listed("ip6").1, ["2001:db8::/33", "ff00::/8"]);
        let report = node.full();
        assert!(report.removed > 0, "rules have lost their fingerprints");
        assert!(!report.drift.examples.iter().any(|d| d.contains("sources-")), "{report:?}");
        let newer = test_netns::nft_trixie(Path::new(env!("CARGO_TARGET_TMPDIR")));
        if let Some(newer) = newer {
            let table = run_nft(&newer, "list table ip kube-proxy");
            assert_eq!(parts(&table), listed("ip"));
        }
    });
}

#[test]
fn a_change_sends_the_difference() {
    changes("nft".as_ref(), netlink);
    if let Some(program) = test_netns::nft_trixie(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        changes(&program, || Box::new(JsonTransport::with_program(&program).expect("nft 1.1.3")));
    }
}

/// Changes ranges by a transport, whose rules the program lists.
fn changes(program: &Path, transport: impl Fn() -> Box<dyn Transport> + Sync) {
    in_namespace(|| {
        let open = || over(transport());
        let listed = |family| parts(&run_nft(program, &format!("list table {family} kube-proxy")));
        let ruleset = || run_nft(program, "list ruleset");
        let mut node = Node::new(config(), open());
        node.sync(guarded(&["10.0.0.0/8", "12.0.0.0/8"]));
        assert_eq!(node.restart(open()).bytes, 0);
        let counts = |node: &mut Node, ranges: &[&str]| {
            let report = node.sync(guarded(ranges));
            (report.added, report.removed)
        };
        assert_eq!(counts(&mut node, &["10.0.0.0/8", "12.0.0.0/8", "14.0.0.0/8"]), (1, 0));
        assert_eq!(counts(&mut node, &["14.0.0.0/8", "16.1.0.0/16", "10.0.0.0/8"]), (1, 1));
        assert_eq!(listed("ip").1, ["10.0.0.0/8", "14.0.0.0/8", "16.1.0.0/16"]);
        // Within a range, and twice: nothing to send.
        let same = ["14.0.0.0/8", "16.1.0.0/16", "10.0.0.0/8", "10.7.0.0/16", "10.0.0.0/8"];
        assert_eq!(counts(&mut node, &same), (0, 0));
        // Neighbours become one, and two again: the set is made anew, with its chain's two rules.
        let joined = ["10.0.0.0/8", "11.0.0.0/8", "14.0.0.0/8", "16.1.0.0/16"];
        assert_eq!(counts(&mut node, &joined), (1 + 2 + 3 + MORE, 1 + 1));
        assert_eq!(listed("ip").1, ["10.0.0.0/7", "14.0.0.0/8", "16.1.0.0/16"]);
        assert_eq!(listed("ip").0.len(), 2);
        node.sync(guarded(&["11.0.0.0/8", "14.0.0.0/8", "15.0.0.0/8"]));
        assert_eq!(listed("ip").1, ["11.0.0.0/8", "14.0.0.0/7"]);
        assert_eq!(node.restart(open()).bytes, 0);
        // Open to all: no set is left.
        node.sync(guarded(&["0.0.0.0/0"]));
        assert!(!ruleset().contains("set sources-"), "{}", ruleset());
        node.sync(guarded(&["0.0.0.0/32", "255.255.255.255/32", "::/128"]));
        assert_eq!(listed("ip").1, ["0.0.0.0", "255.255.255.255"]);
        node.sync(guarded(&["11.0.0.0/8", "fd00::/8"]));
        assert_eq!(
            (listed("ip").1, listed("ip6").1),
            (vec!["11.0.0.0/8".to_owned()], vec!["fd00::/8".to_owned()])
        );
        assert_eq!(node.restart(open()).bytes, 0);
        let gone = service("lb", "10.96.0.20").delete();
        node.sync([gone]);
        assert!(!ruleset().contains("set sources-"), "{}", ruleset());
    });
}

/// A few ranges are a rule each, as sets take the kernel longer to commit.
#[test]
fn few_ranges_become_many_and_few_again() {
    with_node(|mut node| {
        let ranges = |count: usize| {
            load_balancer((0..count).map(|n| format!("10.{}.0.0/16", 2 * n)).collect())
        };
        for (count, rules, has_set) in [
            (1, 2, false),
            (8, 9, false),
            (9, 2, true),
            (120, 2, true),
            (8, 9, false),
            (9, 2, true),
        ] {
            node.sync(ranges(count));
            let (listed_rules, elements) = listed("ip");
            assert_eq!(listed_rules.len(), rules, "{count}: {listed_rules:?}");
            assert_eq!(elements.len(), if has_set { count } else { 0 }, "{elements:?}");
            assert_eq!(ruleset().contains("set sources-"), has_set, "{count}");
            assert_eq!(node.restart(open()).bytes, 0, "{count}");
        }
    });
}

/// Traffic is neither refused nor let through in between: the set has its elements when the chain
/// is reached, and goes when the chain no longer is.
#[test]
fn a_set_is_filled_before_it_is_used_and_goes_after() {
    in_namespace(|| {
        let (mut node, recorded) = recorded(config());
        node.sync(guarded(&[]));
        recorded.take();
        node.sync(guarded(&["10.0.0.0/8"]));
        let committed = recorded.take();
        let [making, main] = committed.as_slice() else { panic!("{committed:?}") };
        assert!(making.contains("add element ip kube-proxy sources-"), "{making}");
        assert!(!making.contains("firewall-ips") && main.contains("firewall-ips"), "{main}");
        node.sync(guarded(&[]));
        let committed = recorded.take();
        let [main, removing] = committed.as_slice() else { panic!("{committed:?}") };
        assert!(main.contains("delete element ip kube-proxy firewall-ips"), "{main}");
        assert!(!main.contains("sources-"), "{main}");
        assert!(removing.contains("delete set ip kube-proxy sources-"), "{removing}");
    });
}

#[test]
fn meddling_is_repaired_and_named() {
    with_node(|mut node| {
        node.sync(guarded(&["10.0.0.0/8", "12.0.0.0/8"]));
        let expected = ruleset();
        let set = expected.split_once("set sources-").unwrap().1.split_once(' ').unwrap().0;
        for (script, drift) in [
            ("add element", "the element 14.0.0.0/8 in ip sources-"),
            ("delete element", "the element 12.0.0.0/8 in ip sources-"),
        ] {
            let range = if script.starts_with("add") { "14.0.0.0/8" } else { "12.0.0.0/8" };
            nft(&format!("{script} ip kube-proxy sources-{set} {{ {range} }}"));
            let report = node.full();
            assert_eq!(report.drift.examples.len(), 1, "{:?}", report.drift);
            assert!(report.drift.examples[0].starts_with(drift), "{:?}", report.drift);
            assert_eq!(ruleset(), expected);
        }
        // A set of another kind with this name is made anew.
        nft(&format!(
            "flush chain ip kube-proxy firewall-{set}; delete set ip kube-proxy sources-{set}; \
             add set ip kube-proxy sources-{set} {{ type ipv4_addr; }}"
        ));
        node.full();
        assert_eq!(listed("ip"), parts(&expected));
        assert_eq!(node.full().bytes, 0);
    });
}

/// kube-proxy has the ranges in a rule.
#[test]
fn chains_with_ranges_in_their_rules_are_taken_over() {
    with_node(|mut node| {
        node.sync(guarded(&["10.0.0.0/8", "12.0.0.0/8"]));
        let expected = ruleset();
        let name = expected.split_once("set sources-").unwrap().1.split_once(' ').unwrap().0;
        let chain = format!("firewall-{name}");
        nft(&format!(
            "flush chain ip kube-proxy {chain}; delete set ip kube-proxy sources-{name}; \
             add rule ip kube-proxy {chain} ip saddr != {{ 10.0.0.0/8, 12.0.0.0/8 }} drop"
        ));
        assert!(!nft("list table ip kube-proxy").contains("set sources-"));
        node.restart(open());
        assert_eq!(listed("ip"), parts(&expected), "{}", ruleset());
        assert_eq!(node.restart(open()).bytes, 0);
    });
}
