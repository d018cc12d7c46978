//! Whatever the Services, kube-proxy can take over the rendered rules and leave nothing behind that
//! a packet meets.
//!
//! Upon a takeover, kube-proxy looks for its jumps word by word, rewrites the chains that it
//! knows, and deletes the chains of the nat table whose names begin like those of its Services and
//! endpoints. Everything else stays for ever.

use std::collections::BTreeSet;

use proptest::prelude::*;
use switchyard_core::{model::IpFamily, testing, track::Tracker};
use switchyard_iptables::{IptablesConfig, render};

const PREFIXES: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-", "KUBE-EXT-"];

fn is_taken_over(table: &str, chain: &str) -> bool {
    let fixed: &[&str] = match table {
        "mangle" => &["KUBE-PROXY-CANARY"],
        "filter" => &[
            "KUBE-PROXY-CANARY",
            "KUBE-SERVICES",
            "KUBE-EXTERNAL-SERVICES",
            "KUBE-NODEPORTS",
            "KUBE-FORWARD",
            "KUBE-PROXY-FIREWALL",
            "KUBE-FIREWALL",
        ],
        "nat" => &[
            "KUBE-PROXY-CANARY",
            "KUBE-SERVICES",
            "KUBE-NODEPORTS",
            "KUBE-POSTROUTING",
            "KUBE-MARK-MASQ",
        ],
        other => panic!("the backend does not use the table {other}"),
    };
    let is_service = PREFIXES.iter().any(|prefix| chain.starts_with(prefix));
    // Only KUBE-PROXY-FIREWALL, which kube-proxy empties, leads to the latter.
    let stays_unused = table == "filter" && chain.starts_with("KUBE-FW-");
    fixed.contains(&chain) || (table == "nat" && is_service) || stays_unused
}

/// The rules of built-in chains.
fn jumps(family: IpFamily) -> BTreeSet<String> {
    const NEW: &str = "-m conntrack --ctstate NEW ";
    let mut jumps: BTreeSet<String> = [
        ("filter INPUT", NEW, "externally-visible service portals", "KUBE-EXTERNAL-SERVICES"),
        ("filter FORWARD", NEW, "externally-visible service portals", "KUBE-EXTERNAL-SERVICES"),
        ("filter INPUT", "", "health check service ports", "KUBE-NODEPORTS"),
        ("filter FORWARD", NEW, "service portals", "KUBE-SERVICES"),
        ("filter OUTPUT", NEW, "service portals", "KUBE-SERVICES"),
        ("filter FORWARD", "", "forwarding rules", "KUBE-FORWARD"),
        ("filter INPUT", NEW, "load balancer firewall", "KUBE-PROXY-FIREWALL"),
        ("filter OUTPUT", NEW, "load balancer firewall", "KUBE-PROXY-FIREWALL"),
        ("filter FORWARD", NEW, "load balancer firewall", "KUBE-PROXY-FIREWALL"),
        ("nat OUTPUT", "", "service portals", "KUBE-SERVICES"),
        ("nat PREROUTING", "", "service portals", "KUBE-SERVICES"),
        ("nat POSTROUTING", "", "postrouting rules", "KUBE-POSTROUTING"),
    ]
    .into_iter()
    .map(|(from, matching, comment, to)| {
        format!("{from} {matching}-m comment --comment \"kubernetes {comment}\" -j {to}")
    })
    .collect();
    if family == IpFamily::V4 {
        jumps.extend(["INPUT", "OUTPUT"].map(|from| format!("filter {from} -j KUBE-FIREWALL")));
    }
    jumps
}

proptest! {
    #![proptest_config(testing::proptest_config(256))]

    #[test]
    fn kube_proxy_can_take_over_whatever_is_there(
        config in testing::arbitrary_config(),
        events in testing::arbitrary_events(60),
    ) {
        let mut tracker = Tracker::new(config);
        for event in events {
            tracker.apply(event);
        }
        tracker.resolve();
        for family in IpFamily::ALL {
            let text = render(&IptablesConfig::default(), tracker.state(), family);
            let (mut table, mut inserted) = (String::new(), BTreeSet::new());
            for line in text.lines() {
                let (action, rest) = line.split_at(line.len().min(3));
                let chain = rest.split(' ').next().unwrap_or_default();
                if let Some(name) = line.strip_prefix('*') {
                    table = name.to_owned();
                } else if let Some(name) = line.strip_prefix(':') {
                    let name = name.split(' ').next().unwrap_or_default();
                    prop_assert!(is_taken_over(&table, name), "{}: {}", table, line);
                } else if action == "-I " {
                    let rule = format!("{table} {}", rest.replacen(" 1 ", " ", 1));
                    prop_assert!(inserted.insert(rule), "twice: {}", line);
                } else if action == "-A " {
                    prop_assert!(is_taken_over(&table, chain), "{}: {}", table, line);
                } else {
                    prop_assert_eq!(line, "COMMIT");
                }
            }
            let jumps = jumps(family);
            let others: Vec<_> = inserted.difference(&jumps).collect();
            prop_assert!(others.is_empty(), "{:?}", others);
            // The jumps to KUBE-FIREWALL are not always needed.
            let missing: Vec<_> = jumps.difference(&inserted).collect();
            prop_assert!(missing.iter().all(|rule| rule.ends_with("KUBE-FIREWALL")), "{:?}", missing);
        }
    }
}
