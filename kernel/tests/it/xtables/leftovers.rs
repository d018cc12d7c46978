//! Removal of chains, without the programs.

use switchyard_kernel::{
    netlink::Socket,
    nftables::generation,
    xtables::{Chain, Dump, Flavour, RuleText, Table, remove},
};
use switchyard_model::IpFamily;

use super::common::{chains, in_namespace, owned, run, tools};

fn dumps(flavour: Flavour) -> Vec<Dump> {
    tools(flavour).iter().map(|programs| programs.save().expect("a dump")).collect()
}

fn rules(dump: &Dump) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    for table in Table::ALL {
        for (name, rules) in dump.chains(table) {
            all.push((format!("{} {name}", table.name()), rules.to_vec()));
        }
    }
    all.sort();
    all
}

/// Chains of both flavours and families disappear, and nothing else does.
#[test]
fn owned_chains_and_the_jumps_to_them_are_removed() {
    in_namespace(|| {
        let before = Flavour::ALL.map(|flavour| {
            for base in ["iptables", "ip6tables"] {
                run(flavour, base, "-t mangle -A OUTPUT -j ACCEPT");
                run(flavour, base, "-t filter -A INPUT -j ACCEPT");
                run(flavour, base, "-t nat -N TEST-POR");
                run(flavour, base, "-t filter -N TEST-PORT-OF-ANOTHER");
            }
            let before: Vec<_> = dumps(flavour).iter().map(rules).collect();
            for programs in tools(flavour).iter() {
                programs.restore(&chains().to_text()).expect("chains");
            }
            let after = dumps(flavour);
            assert!(after.iter().all(|dump| dump.has_chain(Table::Nat, "TEST-PORT-1")));
            before
        });
        for _ in 0..2 {
            remove(&owned()).expect("removal");
            let after =
                Flavour::ALL.map(|flavour| dumps(flavour).iter().map(rules).collect::<Vec<_>>());
            assert_eq!(after, before);
        }
    });
}

#[test]
fn a_chain_that_another_program_uses_is_emptied() {
    for flavour in Flavour::ALL {
        in_namespace(|| {
            for programs in tools(flavour).iter() {
                programs.restore(&chains().to_text()).expect("chains");
            }
            run(flavour, "iptables", "-t nat -A OUTPUT -d 192.0.2.1 -j TEST-PORT-1");
            // The target of an owned jump, but from another chain.
            run(flavour, "iptables", "-A FORWARD -j TEST-MAIN");
            remove(&owned()).expect("removal");
            let dump = &dumps(flavour)[0];
            let empty: &[String] = &[];
            assert_eq!(dump.chain(Table::Nat, "TEST-PORT-1"), Some(empty));
            assert_eq!(dump.chain(Table::Filter, "TEST-MAIN"), Some(empty));
            assert!(!dump.has_chain(Table::Nat, "TEST-MAIN"));
            assert_eq!(dump.chain(Table::Nat, "OUTPUT").map(<[_]>::len), Some(1));
            assert_eq!(dump.chain(Table::Filter, "FORWARD").map(<[_]>::len), Some(1));
        });
    }
}

/// While the kernel commits, no other program can, and each rule may take a page.
#[test]
fn many_rules_are_removed_by_and_by() {
    in_namespace(|| {
        let mut changes = chains();
        let rules = vec![RuleText::new().jump("RETURN"); 2_500];
        changes.write_chain(Table::Nat, Chain { name: "TEST-PORT-2".into(), rules });
        let tools = tools(Flavour::Nft);
        let programs = tools.get(IpFamily::V4).expect("programs");
        programs.restore(&changes.to_text()).expect("chains");
        let mut socket = Socket::open(libc::NETLINK_NETFILTER).expect("a socket");
        let mut generation = || generation(&mut socket).expect("an answer").expect("a generation");
        let before = generation();
        assert!(remove(&owned()).expect("removal"));
        // Jumps, rules in three parts, chains.
        assert_eq!(generation() - before, 5);
        assert!(!remove(&owned()).expect("removal"));
    });
}
