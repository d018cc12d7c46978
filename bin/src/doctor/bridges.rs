//! Bridges whose packets pass no rules.

use switchyard::bypassing_bridges;
use switchyard_core::{model::Code, proxier::Mode};

use super::{
    Known,
    report::{Finding, Level, Outcome},
};

/// Finds bridges of pods whose packets pass no rules.
pub(super) fn bypass(known: &Known) -> Outcome {
    // There, answers come from the node itself.
    if known.likely_mode() == Mode::USERSPACE || known.loaded.settings.node.masquerade_all {
        return Ok(Vec::new());
    }
    let finding = |(bridge, remedy): (String, &str)| Finding {
        code: Code::new("SWY0401"),
        level: Level::Error,
        finding: format!("Pods on the bridge {bridge} cannot reach each other through Services"),
        because: format!(
            "answers between ports of {bridge} pass no rules, which would translate them back: br_netfilter \
             is not loaded, or bridge-nf-call-iptables is 0"
        ),
        remedy: remedy.to_owned(),
    };
    Ok(bypassing_bridges()?.into_iter().map(finding).collect())
}
