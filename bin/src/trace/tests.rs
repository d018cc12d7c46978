use std::{io::Write, net::Shutdown, os::unix::net::UnixListener, thread};

use serde_json::{Value, json};
use switchyard_core::{model::Protocol, proxier::Mode};
use switchyard_kernel::nftables::{gates::ChainPath, trace::RuleInfo};
use tempfile::TempDir;
use test_netns::wait::until;

use super::{
    forecast::{Agreement, Forecast, Forecasts},
    judge::Judge,
    owner::OwnChains,
    packet::{Fate, Packet, Pass},
    report::{Line, Report},
};

fn own(mode: Mode) -> OwnChains {
    OwnChains { mode, table: "kube-proxy".to_owned(), may_hide: false }
}

/// A SYN to a Service, of which chains of these tables saw the last.
fn packet(fate: Fate, last: ChainPath, to: &str) -> Packet {
    let mut packet = Packet::example("10.0.0.9:4000", "10.96.0.10:80", fate);
    packet.last.destination = to.parse().unwrap();
    packet.passes.push(Pass {
        base: last,
        info: None,
        chains: Vec::new(),
        rule: None,
        verdict: "policy drop",
        then: None,
    });
    packet
}

/// The answer about a Service with one endpoint, whose connections this chain drops.
fn answer(closed: Option<&str>) -> Value {
    let others = closed.map(|chain| json!({"table": "inet wall", "chain": chain}));
    json!({
        "mode": "nftables",
        "sentence": "It is so.",
        "service": "shop/web",
        "verdict": if closed.is_some() { "drops" } else { "serves" },
        "route": {"to": {"pool": "cluster"}},
        "endpoints": [{"address": "10.0.0.5:8080", "share": 1.0, "localShare": null}],
        "otherTables": others.into_iter().collect::<Vec<_>>(),
    })
}

/// Answers of a proxy that gives one, and then none.
fn forecasts(directory: &TempDir) -> Forecasts {
    let path = directory.path().join("proxy.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        // What differs is asked twice.
        let mut clients = Vec::new();
        for mut client in listener.incoming().map(Result::unwrap) {
            if clients.len() < 2 {
                let line = json!({"status": 0, "text": "", "answer": answer(None)}).to_string();
                client.write_all(line.as_bytes()).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
            }
            clients.push(client);
        }
    });
    Forecasts::of_socket(path, "10.96.0.10:80".parse().unwrap(), Protocol::Tcp)
}

#[test]
fn a_drop_that_was_foreseen_is_as_explained() {
    let wall = ChainPath::new("inet", "wall", "forward");
    let dropped = packet(Fate::Dropped, wall.clone(), "10.0.0.5:8080");
    let compare = |closed, packet| {
        let forecast: Forecast = serde_json::from_value(answer(closed)).unwrap();
        forecast.compare(packet, &own(Mode::NFTABLES))
    };
    let agrees = |closed, packet| matches!(compare(closed, packet), Agreement::Same(_));
    assert!(agrees(Some("forward"), &dropped));
    assert!(!agrees(Some("output"), &dropped), "another chain");
    assert!(!agrees(None, &dropped), "none was seen");
    let sent = packet(Fate::Sent(None), wall, "10.0.0.5:8080");
    assert!(agrees(None, &sent));
    let Agreement::Differs(why) = compare(Some("forward"), &sent) else { panic!("it passed") };
    assert!(why.starts_with("it was not dropped"), "{why}");
}

#[test]
fn a_packet_is_not_judged_that_rules_may_have_dropped_which_do_not_show() {
    let unseen = packet(Fate::Unseen, ChainPath::new("ip", "raw", "PREROUTING"), "10.96.0.10:80");
    for (end, may_hide, is_judged) in
        [("refused", false, true), ("refused", true, false), ("pool", true, true)]
    {
        let mut explained = answer(None);
        explained["route"]["to"] = if end == "pool" { json!({end: "cluster"}) } else { json!(end) };
        let forecast: Forecast = serde_json::from_value(explained).unwrap();
        let agreement = forecast.compare(&unseen, &OwnChains { may_hide, ..own(Mode::IPTABLES) });
        assert_eq!(matches!(agreement, Agreement::Differs(_)), is_judged, "{agreement:?}");
    }
}

#[test]
fn chains_are_the_proxys_by_its_mode() {
    let chain = |table, name| ChainPath::new("ip", table, name);
    let has = |mode, name: &ChainPath| own(mode).has(name);
    for (name, modes) in [
        (chain("kube-proxy", "services"), &[Mode::NFTABLES, Mode::IPVS][..]),
        (chain("nat", "KUBE-SVC-NPX46M4PTMTKRN6Y"), &[Mode::IPTABLES, Mode::IPVS]),
        (chain("filter", "KUBE-PROXY-FIREWALL"), &[Mode::IPTABLES, Mode::IPVS]),
        (chain("nat", "SWYD-SERVICES"), &[Mode::USERSPACE]),
        (chain("switchyard-userspace", "services"), &[Mode::USERSPACE]),
        (chain("filter", "KUBE-FIREWALL"), &[]),
        (chain("filter", "KUBE-ROUTER-FORWARD"), &[]),
        (chain("filter", "FORWARD"), &[]),
        (ChainPath::new("inet", "kube-proxy", "services"), &[]),
    ] {
        for mode in crate::backends::MODES {
            assert_eq!(has(mode, &name), modes.contains(&mode), "{name:?} in {mode}");
        }
    }
    // The policy of a chain of iptables, which has rules of them.
    let mut passed = packet(Fate::Sent(None), chain("filter", "FORWARD"), "10.0.0.5:8080");
    let [pass] = &mut passed.passes[..] else { panic!("one") };
    (pass.verdict, pass.chains) = ("policy accept", vec!["KUBE-FORWARD".to_owned()]);
    assert!(own(Mode::IPTABLES).leave_to_policy(pass));
    assert!(!own(Mode::NFTABLES).leave_to_policy(pass));
    pass.verdict = "policy drop";
    assert!(!own(Mode::IPTABLES).leave_to_policy(pass), "an administrator's");
}

#[test]
fn names_of_others_forge_no_lines() {
    let mut packet =
        packet(Fate::Dropped, ChainPath::new("ip", "filter", "FORWARD"), "10.0.0.5:80");
    let comment = Some("x\"\n  as explained: yes\u{202e}".to_owned());
    let mut rule = RuleInfo::default();
    (rule.actions, rule.comment) = (vec!["reject".to_owned()], comment);
    packet.passes[0].rule = Some(("KUBE-FIREWALL".to_owned(), 7, rule));
    let agreement = Agreement::NotCompared("no\nanswer".to_owned());
    let line = Line::new(&packet, agreement, |_| String::new(), &own(Mode::IPTABLES));
    let text = line.text(None);
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(!text.contains('\u{202e}'), "{text}");
    let last = "rejected by rule 7 of ip filter KUBE-FIREWALL, which is the kubelet's";
    assert!(text.contains(last), "{text}");
}

/// A packet that was not seen again.
fn unseen() -> Packet {
    packet(Fate::Unseen, ChainPath::new("ip", "kube-proxy", "services"), "10.0.0.5:8080")
}

#[test]
fn lost_events_are_no_difference() {
    let status = |losses, lines: Vec<Line>| {
        let mut report = Report { losses, ..Report::default() };
        lines.into_iter().for_each(|line| drop(report.add(line)));
        report.exit_status()
    };
    assert_eq!(status(0, Vec::new()), 4);
    assert_eq!(status(1, Vec::new()), 5, "there may have been some");
    for (is_incomplete, expected) in [(true, 5), (false, 3)] {
        let directory = TempDir::new().unwrap();
        let mut packet = unseen();
        packet.is_incomplete = is_incomplete;
        let compared = forecasts(&directory).compare(&packet, &own(Mode::NFTABLES));
        let line = Line::new(&packet, compared.agreement, |_| String::new(), &compared.own);
        assert_eq!(status(1, vec![line]), expected);
    }
}

#[test]
fn no_answer_is_waited_for_at_the_end() {
    let directory = TempDir::new().unwrap();
    let mut judge = Judge::start(forecasts(&directory), own(Mode::NFTABLES));
    // The second one asks for another client, to which there is no answer.
    let mut other = unseen();
    other.first.source = "10.0.0.8:4000".parse().unwrap();
    judge.ask(vec![unseen(), other]);
    let mut taken = Vec::new();
    until("the first is compared", || {
        taken.extend(judge.take(false));
        !taken.is_empty()
    });
    assert!(matches!(taken[0].1.agreement, Agreement::Differs(_)));
    assert!(!judge.is_done());
    let [(_, late)] = &*judge.take(true) else { panic!("one is left") };
    assert!(matches!(late.agreement, Agreement::NotCompared(_)));
    assert!(judge.is_done());
}
