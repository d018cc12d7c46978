//! Removes everything that this backend, or kube-proxy, has programmed; but for the chain
//! KUBE-FIREWALL and the jumps to it. It is the kubelet's as well, and as long as
//! `route_localnet` stays on, which nothing switches off, it protects what listens on loopback
//! addresses. kube-proxy leaves it, too.

use crate::{
    layout::{
        Table, fixed,
        names::{self, chain},
        text,
    },
    tool::{dump::Dump, input::Changes},
};

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
    changes
}
