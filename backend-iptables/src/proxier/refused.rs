//! The Service ports of which `iptables-restore` refuses a line.

use switchyard_core::{proxier::DegradedPort, state::State};

use crate::{
    ToolError,
    layout::{Context, service_port::PortRules},
};

/// Returns the Service ports of a family that need the refused lines; none if no line is known, or
/// no Service port needs them.
pub(super) fn ports(state: &State, context: &Context<'_>, error: &ToolError) -> Vec<DegradedPort> {
    let lines: Vec<(&str, &str)> = error.refused_lines().filter_map(with_chain).collect();
    if lines.is_empty() {
        return Vec::new();
    }
    let needs = |rules: PortRules| {
        lines.iter().any(|(chain, text)| {
            rules.chains.iter().any(|(_, own)| own.name == *chain)
                || rules.shared.iter().any(|(_, rule)| text.contains(rule.as_str()))
        })
    };
    let ports = state.service_ports.iter().filter(|(id, _)| id.family == context.family);
    ports
        .filter(|(_, port)| needs(PortRules::new(port, context)))
        .map(|(id, _)| DegradedPort { port: id.clone(), reason: error.to_string() })
        .collect()
}

/// Returns a line with its chain, which is `:CHAIN - [0:0]`, or `-A CHAIN RULE`, `-I CHAIN 1 RULE`
/// and the like.
fn with_chain(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    let first = words.next()?;
    Some((first.strip_prefix(':').or_else(|| words.next()).unwrap_or_default(), line))
}
