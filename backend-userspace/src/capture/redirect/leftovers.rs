//! The rules of kube-proxy's own userspace mode, which releases before 1.26 had.

use switchyard_core::proxier::{Mode, ProxierError};
use switchyard_kernel::xtables::{Jump, OwnedChains, RuleText, Table, remove};

/// The chains, with the chain that leads to each.
const CHAINS: [(Table, &str, &str); 5] = [
    (Table::Nat, "PREROUTING", "KUBE-PORTALS-CONTAINER"),
    (Table::Nat, "OUTPUT", "KUBE-PORTALS-HOST"),
    (Table::Nat, "PREROUTING", "KUBE-NODEPORT-CONTAINER"),
    (Table::Nat, "OUTPUT", "KUBE-NODEPORT-HOST"),
    (Table::Filter, "INPUT", "KUBE-NODEPORT-NON-LOCAL"),
];

/// Removes the chains and the jumps to them, of both flavours and both families. Needs no programs.
pub(crate) fn clean_up() -> Result<(), ProxierError> {
    let jump = |(table, from, to)| Jump { table, from, to, rule: RuleText::new().jump(to) };
    let owned = OwnedChains {
        names: CHAINS.iter().map(|(table, _, to)| (*table, *to)).collect(),
        prefixes: Vec::new(),
        jumps: CHAINS.map(jump).into(),
    };
    remove(&owned).map(drop).map_err(|error| {
        let message = "cannot remove the rules of kube-proxy's userspace mode";
        ProxierError::backend(Mode::USERSPACE, message, error)
    })
}
