//! Others change what was programmed: it is noticed, said and repaired, and as long as it cannot be
//! repaired the program says that it is not healthy.

use switchyard_core::testing::check_schema;

use crate::{
    metrics::Owner,
    namespace::{HEALTH, METRICS, Namespace, Program},
};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
const MANIFESTS: [&str; 4] = ["--manifests", EXAMPLES, "--hostname-override=node-1", "-v=2"];

/// Waits until something has been repaired.
fn wait_for_repair(namespace: &Namespace) {
    namespace.wait(METRICS, "/metrics", |_, text| {
        let repairs = text.lines().find_map(|l| l.strip_prefix("switchyard_drift_repairs_total "));
        repairs.is_some_and(|count| count != "0")
    });
}

/// The program and the arguments of a command line.
fn words(line: &str) -> (&str, Vec<&str>) {
    let mut words = line.split(' ');
    (words.next().unwrap(), words.collect())
}

#[test]
fn what_others_change_is_repaired_and_told() {
    for (mode, list, damage) in [
        ("nftables", "nft list table ip kube-proxy", "nft flush map ip kube-proxy service-ips"),
        ("iptables", "iptables-save -t nat", "iptables -t nat -F KUBE-SERVICES"),
        ("userspace", "ip -brief address show dev switchyard0", "ip link del switchyard0"),
    ] {
        let namespace = Namespace::new();
        let proxy_mode = format!("--proxy-mode={mode}");
        let mut arguments = MANIFESTS.to_vec();
        arguments.push(&proxy_mode);
        let program = Program::start(&namespace, &arguments);
        // What others change in one family while the other is programmed is noticed by the hour.
        namespace.wait(HEALTH, "/readyz", |status, _| status == 200);
        // Counters of packets and times of day differ.
        let rules = || -> Vec<String> {
            let (program, arguments) = words(list);
            let listed = namespace.listing(program, &arguments);
            listed.lines().filter(|line| !line.starts_with(['#', ':'])).map(str::to_owned).collect()
        };
        let whole = rules();
        let (program_of_others, arguments) = words(damage);
        namespace.0.output(program_of_others, &arguments, "").unwrap();
        wait_for_repair(&namespace);
        assert_eq!(rules(), whole, "{mode}");
        let (_, status) = namespace.get(METRICS, "/status?format=json").unwrap();
        check_schema("status", &serde_json::from_str(&status).unwrap());
        assert_eq!(namespace.get(HEALTH, "/healthz").map(|(status, _)| status), Some(200));
        let (_, log) = program.terminate();
        let line =
            log.lines().find(|line| line.contains("Repaired changes by another program")).unwrap();
        let name = damage.split(' ').next_back().unwrap();
        assert!(line.starts_with('W') && line.contains(name), "{line}");
    }
}

#[test]
fn what_cannot_be_repaired_is_not_healthy() {
    let namespace = Namespace::new();
    let program = Program::start(&namespace, &MANIFESTS);
    namespace.wait(HEALTH, "/readyz", |status, _| status == 200);
    let owner = Owner::of_table(&namespace);
    // A restart of the program would not help, and would hurt the other family.
    let answers = [("/healthz", 503), ("/readyz", 503), ("/livez", 200)];
    for (path, expected) in answers {
        let wrong = "the kernel does not hold what was programmed";
        let is_known = |status, body: &str| status == expected && body.contains(wrong);
        let body = namespace.wait(HEALTH, path, is_known);
        assert!(body.contains("\"healthy\":false"), "{body}");
        // Everybody can ask, so the cause is in the log alone.
        assert!(body.contains("\"IPv4 is left out, since the node refuses its rules\""), "{body}");
        assert!(body.contains("\"IPv6\":{\"lastUpdated\""), "{body}");
    }
    drop(owner);
    let body = namespace.wait(HEALTH, "/healthz", |status, _| status == 200);
    assert!(!body.contains("problems"), "{body}");
    assert!(namespace.list("table ip kube-proxy").contains("map service-ips"));
    let (_, log) = program.terminate();
    assert!(log.contains("the node refuses all of IPv4: "), "{log}");
}
