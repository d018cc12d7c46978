//! The `iptables` programs of both flavours, run in the node's namespace.

use packet_rig::NetNs;
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use super::Result;

/// The name of the program of a flavour for a family; `suffix` is empty, `-save` or `-restore`.
pub fn program(flavour: Flavour, family: IpFamily, suffix: &str) -> String {
    let base = match family {
        IpFamily::V4 => "iptables",
        IpFamily::V6 => "ip6tables",
    };
    format!("{base}-{flavour}{suffix}")
}

/// Returns the lines that `iptables-save` prints, without comments and counters.
pub fn save(flavour: Flavour, node: &NetNs, family: IpFamily) -> Result<Vec<String>> {
    let text = node.output(&program(flavour, family, "-save"), &[], "")?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let without_counters = |line: &str| match line.starts_with(':') {
        true => line.split(" [").next().unwrap_or_default().to_owned(),
        false => line.to_owned(),
    };
    Ok(lines.map(without_counters).collect())
}

/// Loads lines with `iptables-restore --noflush`.
pub fn restore(flavour: Flavour, node: &NetNs, family: IpFamily, text: &str) -> Result<()> {
    let arguments = ["-w", "5", "--noflush", "--counters"];
    node.output(&program(flavour, family, "-restore"), &arguments, text)?;
    Ok(())
}
