//! The rules of the kernel, a line for each object.

use crate::run;

/// Lists the tables of nftables: a line for each table, block and element, with the names of the
/// table and the block that it is in.
///
/// # Panics
///
/// If `nft` fails.
pub fn nft_lines() -> Vec<String> {
    let (mut lines, mut table, mut block) = (Vec::new(), String::new(), String::new());
    for line in run("nft -s list ruleset").lines().map(str::trim) {
        match line.strip_suffix(" {") {
            Some(name) if name.starts_with("table ") => {
                name.clone_into(&mut table);
                block.clear();
                lines.push(table.clone());
            }
            Some(name) => {
                name.clone_into(&mut block);
                lines.push(format!("{table} {block}"));
            }
            None => {
                let text = line.trim_start_matches("elements = { ");
                let text = text.trim_end_matches([',', ' ', '}']);
                let is_set = block.starts_with("set") || block.starts_with("map");
                let several = is_set && !line.contains("flags");
                let separator = if several { ", " } else { "\n" };
                let parts = text.split(separator).filter(|part| !part.is_empty());
                lines.extend(parts.map(|part| format!("{table} {block}: {part}")));
            }
        }
    }
    lines
}

/// Lists the chains and rules of iptables with the flavour `nft`, each with its program and table.
/// Chains of the kernel's own are left out, as they stay when they were used.
///
/// # Panics
///
/// If a program fails.
pub fn iptables_lines() -> Vec<String> {
    let mut lines = Vec::new();
    for program in ["iptables-nft-save", "ip6tables-nft-save"] {
        let mut table = String::new();
        for line in run(program).lines().filter(|line| !line.starts_with('#')) {
            match line.strip_prefix('*') {
                Some(name) => name.clone_into(&mut table),
                None if line == "COMMIT" || line.ends_with(" ACCEPT [0:0]") => {}
                None => lines.push(format!("{program} {table} {line}")),
            }
        }
    }
    lines
}
