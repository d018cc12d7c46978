//! The Service ports of which `iptables-restore` refuses a line.

use switchyard_core::{proxier::Skipped, state::State};

use crate::{
    ToolError,
    layout::{Context, service_port::PortRules},
};

/// Returns the Service ports of a family that need the refused line; none if the line is not known, or no
/// Service port needs it.
pub(super) fn ports(state: &State, context: &Context<'_>, error: &ToolError) -> Vec<Skipped> {
    let ToolError::Refused { text, .. } = error else { return Vec::new() };
    // `:CHAIN - [0:0]`, or `-A CHAIN RULE`, `-I CHAIN 1 RULE` and the like.
    let mut words = text.split_whitespace();
    let chain = match words.next() {
        Some(first) if first.starts_with(':') => &first[1..],
        Some(_) => words.next().unwrap_or_default(),
        None => return Vec::new(),
    };
    let needs = |rules: PortRules| {
        rules.chains.iter().any(|own| own.name == chain)
            || rules.shared.iter().any(|(_, rule)| text.contains(rule.as_str()))
    };
    let ports = state.service_ports.iter().filter(|(id, _)| id.family == context.family);
    ports
        .filter(|(_, port)| needs(PortRules::new(port, context)))
        .map(|(id, _)| Skipped { port: id.clone(), reason: error.to_string() })
        .collect()
}
