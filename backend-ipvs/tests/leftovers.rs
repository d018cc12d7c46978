//! Removal of what ipvs mode leaves, in a network namespace, and the probe. Needs root, and the
//! programs `ip`, `ipset`, `iptables` and `nft`.
//!
//! A kernel without dummy devices has a bridge in the device's place.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

use std::path::Path;

use switchyard_core::{
    error::ErrorChain,
    proxier::{Backend, Mode, ProxierError},
};
use switchyard_ipvs::IpvsBackend;
use test_netns::{forbid_modules, in_namespace, run, run_with, try_run};

const FLAVOURS: [&str; 2] = ["legacy", "nft"];

/// The sets and the device of ipvs mode.
fn leave_sets_and_device() {
    for set in [
        "KUBE-CLUSTER-IP hash:ip,port",
        "KUBE-LOOP-BACK hash:ip,port,ip",
        "KUBE-NODE-PORT-TCP bitmap:port range 0-65535",
        "KUBE-6-CLUSTER-IP hash:ip,port family inet6",
        "KUBE-6-LOAD-BALANCER-SOURCE-CID hash:ip,port,net family inet6",
    ] {
        run(&format!("ipset create {set}"));
    }
    if try_run("ip link add kube-ipvs0 type dummy").is_err() {
        run("ip link add kube-ipvs0 type bridge");
    }
    run("ip address add 10.96.0.10/32 dev kube-ipvs0");
}

/// The rules of ipvs mode for one Service, for IPv4 and IPv6.
fn leave_rules(flavour: &str) {
    for (program, number) in [("iptables", ""), ("ip6tables", "6-")] {
        let rules = format!(
            "*nat\n\
             :KUBE-SERVICES - [0:0]\n:KUBE-POSTROUTING - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n\
             :KUBE-LOAD-BALANCER - [0:0]\n:KUBE-NODE-PORT - [0:0]\n:KUBE-FIREWALL - [0:0]\n\
             -A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
             -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
             -A POSTROUTING -j KUBE-POSTROUTING\n\
             -A KUBE-SERVICES -m set --match-set KUBE-{number}CLUSTER-IP dst,dst -j KUBE-MARK-MASQ\n\
             -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT\n\
             -A KUBE-NODE-PORT -j KUBE-MARK-MASQ\n\
             -A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ\n\
             -A KUBE-LOAD-BALANCER -j KUBE-FIREWALL\n\
             -A KUBE-FIREWALL -m set --match-set KUBE-{number}CLUSTER-IP dst,dst -j RETURN\n\
             -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n\
             COMMIT\n\
             *filter\n\
             :KUBE-FORWARD - [0:0]\n:KUBE-NODE-PORT - [0:0]\n:KUBE-PROXY-FIREWALL - [0:0]\n\
             :KUBE-SOURCE-RANGES-FIREWALL - [0:0]\n:KUBE-IPVS-FILTER - [0:0]\n\
             :KUBE-IPVS-OUT-FILTER - [0:0]\n\
             -A INPUT -j KUBE-NODE-PORT\n-A INPUT -j KUBE-PROXY-FIREWALL\n\
             -A INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER\n\
             -A FORWARD -j KUBE-FORWARD\n-A FORWARD -j KUBE-PROXY-FIREWALL\n\
             -A OUTPUT -j KUBE-IPVS-OUT-FILTER\n\
             -A KUBE-IPVS-FILTER -m set --match-set KUBE-{number}CLUSTER-IP dst,dst -j RETURN\n\
             -A KUBE-SOURCE-RANGES-FIREWALL -j DROP\n\
             COMMIT\n"
        );
        run_with(&format!("{program}-{flavour}-restore --noflush -w"), &rules);
    }
}

/// Rules and sets of other programs, among them names that begin as kube-proxy's do.
fn settle_others() {
    for set in ["KUBE-SRC-ABCDEFGH hash:ip", "KUBE-CLUSTER-IPS hash:ip", "cali40masq hash:ip"] {
        run(&format!("ipset create {set}"));
    }
    for flavour in FLAVOURS {
        let rules = "*filter\n:KUBE-ROUTER-INPUT - [0:0]\n:KUBE-FIREWALL - [0:0]\n\
                     -A INPUT -j KUBE-ROUTER-INPUT\n-A INPUT -j KUBE-FIREWALL\n\
                     -A KUBE-ROUTER-INPUT -m set --match-set KUBE-SRC-ABCDEFGH src -j ACCEPT\n\
                     COMMIT\n";
        run_with(&format!("iptables-{flavour}-restore --noflush -w"), rules);
    }
    run("ip link add kube-bridge type bridge");
    run("nft add table ip switchyard");
}

/// Everything that the tests look at: rules of both flavours, sets, and devices.
fn contents() -> Vec<String> {
    let mut lines = Vec::new();
    for program in ["iptables-legacy", "iptables-nft", "ip6tables-legacy", "ip6tables-nft"] {
        for table in ["nat", "filter"] {
            let rules = run(&format!("{program} -w -t {table} -S"));
            lines.extend(rules.lines().map(|line| format!("{program} {table} {line}")));
        }
    }
    for line in ["ipset list -n", "ip -brief link"] {
        lines.extend(run(line).lines().map(str::to_owned));
    }
    // But for the tables of iptables-nft, which stay when they are empty.
    let tables = run("nft list tables");
    lines.extend(tables.lines().filter(|line| line.contains("switchyard")).map(str::to_owned));
    lines.sort();
    lines
}

#[test]
fn only_what_is_of_ipvs_mode_goes_and_beside_iptables_mode_the_chains_of_both_stay() {
    for flavour in FLAVOURS {
        in_namespace(|| {
            settle_others();
            let others = contents();
            leave_sets_and_device();
            leave_rules(flavour);
            // iptables mode writes the chains of both anew, and leads to them by its own jumps.
            for program in ["iptables", "ip6tables"] {
                let rules =
                    "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j KUBE-MARK-MASQ\nCOMMIT\n";
                run_with(&format!("{program}-{flavour}-restore --noflush -w"), rules);
            }
            let before = contents();
            IpvsBackend::default().clean_up(Some(Mode::IPTABLES)).unwrap();
            let only_ipvs = [
                "KUBE-LOAD-BALANCER",
                "KUBE-FIREWALL",
                "KUBE-NODE-PORT",
                "KUBE-SOURCE-RANGES-FIREWALL",
                "KUBE-IPVS-",
                "KUBE-CLUSTER-IP",
                "KUBE-LOOP-BACK",
                "KUBE-6-",
                "kube-ipvs0",
            ];
            let stays = |line: &&String| {
                others.contains(line) || !only_ipvs.iter().any(|name| line.contains(name))
            };
            let expected: Vec<_> = before.iter().filter(stays).cloned().collect();
            assert!(
                expected.iter().any(|line| line.ends_with("-A KUBE-SERVICES -j KUBE-MARK-MASQ"))
            );
            assert_eq!(contents(), expected, "{flavour}");
            // Beside any other mode, they go as well.
            for _ in 0..2 {
                IpvsBackend::default().clean_up(Some(Mode::NFTABLES)).unwrap();
                assert_eq!(contents(), others, "{flavour}");
            }
        });
    }
}

#[test]
fn what_stays_is_an_error_and_can_be_removed_later() {
    in_namespace(|| {
        leave_sets_and_device();
        leave_rules("nft");
        let rule = "FORWARD -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT";
        run(&format!("iptables-nft -w -A {rule}"));
        let error = IpvsBackend::default().clean_up(None).unwrap_err();
        assert_eq!(
            ErrorChain(&error).to_string(),
            "ipvs: cannot remove everything of ipvs mode: cannot destroy the ipset \
             KUBE-CLUSTER-IP: the set is in use"
        );
        assert_eq!(run("ipset list -n"), "KUBE-CLUSTER-IP\n");
        assert!(!run("ip -brief link").contains("kube-ipvs0"));
        run(&format!("iptables-nft -w -D {rule}"));
        IpvsBackend::default().clean_up(None).unwrap();
        assert_eq!(run("ipset list -n"), "");
    });
}

#[test]
fn a_clean_up_without_leftovers_and_a_probe_change_nothing() {
    in_namespace(|| {
        // To open the backend would load the module of IPVS, which would stay.
        forbid_modules();
        let before = contents();
        IpvsBackend::default().clean_up(None).unwrap();
        match (IpvsBackend::default().probe(), Path::new("/proc/net/ip_vs").exists()) {
            (Ok(probed), true) => assert!(probed.families.v4),
            (Err(error), false) => {
                assert!(matches!(error, ProxierError::Unusable { is_node: true, .. }), "{error:?}");
                let text = ErrorChain(&error).to_string();
                assert!(text.ends_with("the kernel module ip_vs is missing"), "{text}");
            }
            (found, has_ipvs) => panic!("IPVS: {has_ipvs}, but {found:?}"),
        }
        assert_eq!(contents(), before);
    });
}
