//! Removes everything that this backend, or kube-proxy, has programmed.

use crate::{
    layout::{
        Table, fixed,
        names::{self, chain},
        text,
    },
    tool::{dump::Dump, input::Changes},
};

/// Chains of the kubelet, by which it shows that it is there.
const KUBELET: [&str; 2] = ["KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"];

/// Whether a chain is one that we make.
fn is_ours(table: Table, name: &str) -> bool {
    match table {
        Table::Mangle => name == chain::CANARY,
        Table::Filter => [
            chain::CANARY,
            chain::SERVICES,
            chain::EXTERNAL_SERVICES,
            chain::NODE_PORTS,
            chain::FORWARD,
            chain::PROXY_FIREWALL,
        ]
        .contains(&name),
        Table::Nat => {
            let fixed = [
                chain::CANARY,
                chain::SERVICES,
                chain::NODE_PORTS,
                chain::MARK_MASQ,
                chain::POSTROUTING,
            ];
            fixed.contains(&name) || names::is_of_service_port(name)
        }
    }
}

/// What removes everything from tables that hold `dump`. Chains that somebody else's rules lead to
/// stay, without rules.
pub(crate) fn plan(dump: &Dump) -> Changes {
    let mut changes = Changes::default();
    for table in Table::ALL {
        let froms: Vec<_> = fixed::jumps().into_iter().filter(|jump| jump.table == table).collect();
        let is_our_jump = |from: &str, rule: &str| {
            let to = text::target(rule);
            froms.iter().any(|jump| jump.from == from && Some(jump.to) == to)
        };
        let mut held = Vec::new();
        for (from, rules) in dump.chains(table).filter(|(name, _)| !is_ours(table, name)) {
            for rule in rules {
                if is_our_jump(from, rule) {
                    changes.delete_rule(table, from, rule);
                } else {
                    held.extend(text::target(rule));
                }
            }
        }
        for (name, rules) in dump.chains(table).filter(|(name, _)| is_ours(table, name)) {
            if !held.contains(&name) {
                changes.remove_chain(table, name);
            } else if !rules.is_empty() {
                changes.empty_chain(table, name);
            }
        }
    }
    remove_firewall(&mut changes, dump);
    changes
}

/// The kubelet makes the same chain with the same rule: where there is one, they are its own.
fn remove_firewall(changes: &mut Changes, dump: &Dump) {
    let table = Table::Filter;
    let has_kubelet =
        Table::ALL.iter().any(|table| KUBELET.iter().any(|name| dump.has_chain(*table, name)));
    let Some(rules) = dump.chain(table, chain::FIREWALL) else { return };
    let is_ours = |rule: &String| rule.contains("block incoming localnet connections");
    if has_kubelet || !rules.iter().all(is_ours) {
        return;
    }
    for jump in fixed::firewall_jumps() {
        let known = dump.chain(table, jump.from).unwrap_or_default();
        for rule in known.iter().filter(|rule| **rule == jump.rule) {
            changes.delete_rule(table, jump.from, rule);
        }
    }
    changes.remove_chain(table, chain::FIREWALL);
}
