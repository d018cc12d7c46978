//! The way of packets through all tables of nf_tables, by the kernel's own trace.
//!
//! A [`TraceTable`] marks the packets of a flow, a [`TraceListener`] receives what each base
//! chain does with them, and a [`Rulebook`] reads the chains and rules that these [`TraceEvent`]s
//! name.

mod event;
mod rulebook;
mod table;

pub use self::{
    event::{Headers, TraceEvent, TraceListener, TraceStep, TraceVerdict},
    rulebook::{BaseChainInfo, RuleInfo, Rulebook},
    table::{MARKING, RECEIVED, SENT, TraceTable, TracedFlow},
};

#[cfg(test)]
mod kernel_tests {
    use std::{net::UdpSocket, time::Duration};

    use test_netns::{in_namespace, run, run_with};

    use super::*;
    use crate::{netlink::Error, nftables::gates::ChainPath};

    const NAME: &str = "switchyard-trace-1";
    const RULES: &str = "\
table inet other { chain out { type filter hook output priority 7; udp dport 9 jump deeper; }
chain deeper { counter reject comment \"no discards\"; }
}
";

    /// The events of a datagram to this address, one line for each, and the first headers.
    fn way(to: &str) -> (Vec<String>, Option<Headers>) {
        let to = to.parse().unwrap();
        let flow = TracedFlow { client: None, by_node: None, to, protocol: 17 };
        let mut listener = TraceListener::open().unwrap();
        let table = TraceTable::add(NAME, &flow, 20, Duration::from_secs(60)).unwrap();
        let client = UdpSocket::bind(if to.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" }).unwrap();
        // A rule that rejects returns an error, which is the sender's.
        let _ = client.send_to(b"a", to);
        // One to another port is not traced.
        let _ = client.send_to(b"a", (to.ip(), 10));
        drop(table);
        let mut events = Vec::new();
        while let Some(more) = listener.receive().unwrap() {
            events.extend(more);
        }
        let [first, last] = [events.first(), events.iter().rfind(|it| it.headers.is_some())];
        let [first, last] = [first, last].map(|event| event.unwrap().headers);
        assert_eq!(first, last, "each base chain begins with the headers");
        assert!(events.iter().all(|event| {
            event.headers.is_some() == (event.input.is_some() || event.output.is_some())
        }));
        let line = |event: &TraceEvent| {
            let ChainPath { family, table, chain } = &event.chain;
            let step = match &event.step {
                TraceStep::Rule { verdict, .. } => format!("{verdict:?}"),
                step => format!("{step:?}"),
            };
            format!("{family} {table} {chain} {step}")
        };
        (events.iter().map(line).collect(), events.iter().find_map(|event| event.headers))
    }

    #[test]
    fn a_packet_is_followed_until_it_is_received_or_dropped() {
        in_namespace(|| {
            run("ip link set lo up");
            let _server = UdpSocket::bind("[::]:8").unwrap();
            let passed = |family: &str| {
                let steps = ["End", "Policy { accepts: true }"];
                let chains = ["output", SENT, "prerouting", RECEIVED].into_iter();
                let ends = chains
                    .flat_map(|chain| steps.map(|step| format!("{family} {NAME} {chain} {step}")));
                [format!("{family} {NAME} output Continue")]
                    .into_iter()
                    .chain(ends)
                    .collect::<Vec<_>>()
            };
            let (lines, headers) = way("127.0.0.1:8");
            assert_eq!(lines, passed("ip"));
            let headers = headers.unwrap();
            assert_eq!(
                (headers.destination, headers.protocol),
                ("127.0.0.1:8".parse().unwrap(), 17)
            );
            assert!(headers.source.ip().is_loopback() && headers.source.port() != 0);
            let (lines, headers) = way("[::1]:8");
            assert_eq!(lines, passed("ip6"));
            assert_eq!(headers.unwrap().destination, "[::1]:8".parse().unwrap());

            run_with("nft -f -", RULES);
            let (lines, _) = way("127.0.0.1:9");
            let dropped =
                ["inet other out Chain(\"deeper\")", "inet other deeper Drop"].map(str::to_owned);
            assert_eq!(lines[3..], dropped);
            assert_eq!(run("nft list tables"), "table inet other\n", "the table is gone");
        });
    }

    #[test]
    fn the_table_is_the_sockets_and_is_listed_by_nft() {
        in_namespace(|| {
            let flow = |client: Option<&str>, to: &str| TracedFlow {
                client: client.map(|client| client.parse().unwrap()),
                by_node: Some(false),
                to: to.parse().unwrap(),
                protocol: 6,
            };
            for (flow, rule) in [
                (
                    flow(Some("10.1.0.9"), "10.0.0.1:80"),
                    "meta l4proto . ip daddr . th dport . ip saddr @flow limit rate 20/second meta \
                     nftrace set 1",
                ),
                (
                    flow(Some("fd01::9"), "[fd00::1]:80"),
                    "meta l4proto . ip6 daddr . th dport . ip6 saddr @flow limit rate 20/second meta \
                     nftrace set 1",
                ),
            ] {
                let _table = TraceTable::add(NAME, &flow, 20, Duration::from_secs(60)).unwrap();
                let listed = run("nft list ruleset");
                assert_eq!(listed.matches(rule).count(), 1, "{listed}");
                assert!(listed.contains(" timeout 1m "), "{listed}");
                assert!(test_netns::try_run("nft flush ruleset").is_ok());
                let listed = run("nft list ruleset");
                assert!(listed.contains(rule), "others cannot remove it: {listed}");
                let again = TraceTable::add(NAME, &flow, 20, Duration::from_secs(60));
                let error = again.unwrap_err();
                assert!(matches!(error, Error::Kernel(_)), "{error}");
            }
            assert_eq!(run("nft list ruleset"), "");
        });
    }

    #[test]
    fn chains_and_rules_are_described() {
        in_namespace(|| {
            run_with("nft -f -", RULES);
            let mut book = Rulebook::open().unwrap();
            let [chain] = &*book.base_chains().unwrap() else { panic!("one base chain") };
            assert_eq!((chain.hook, chain.priority, &*chain.kind), ("output", 7, "filter"));
            let deeper = ChainPath { chain: "deeper".to_owned(), ..chain.name.clone() };
            let listed = run("nft -a list chain inet other deeper");
            let handle = listed.split("discards\" # handle ").nth(1).unwrap();
            let handle = handle.lines().next().unwrap().parse().unwrap();
            let rule = book.rule(&deeper, handle).unwrap().unwrap();
            assert_eq!(rule.actions, ["reject"]);
            assert_eq!(rule.comment.as_deref(), Some("no discards"));
            assert_eq!(book.rule(&deeper, 99).unwrap(), None);
        });
    }
}
