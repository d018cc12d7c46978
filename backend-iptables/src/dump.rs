//! The chains as text, for people.

use std::fmt::Write;

use switchyard_core::{model::IpFamily, proxier::KernelTable};
use switchyard_kernel::xtables::{Programs, Table, target};

use crate::{IptablesConfig, layout::names::ChainNames, proxier::choose_tools};

/// Reads the chains of this configuration, and the rules that lead to them.
pub(crate) fn dump(config: &IptablesConfig, most: usize) -> Vec<KernelTable> {
    let tools = match choose_tools(config) {
        Ok(tools) => tools,
        Err(error) => return vec![KernelTable::unread("iptables".to_owned(), &error)],
    };
    let (mut tables, mut left) = (Vec::new(), most);
    for programs in tools.iter() {
        if left == 0 {
            let text = Some(KernelTable::CUT.to_owned());
            tables.push(KernelTable { name: name(programs), text });
            continue;
        }
        let dump = match programs.save() {
            Ok(dump) => dump,
            Err(error) => {
                tables.push(KernelTable::unread(name(programs), &error));
                continue;
            }
        };
        for table in Table::ALL {
            let mut chains: Vec<_> = dump.chains(table).collect();
            chains.sort_unstable();
            let text = text(&chains, config.chains.names(), left);
            left = left.saturating_sub(text.len());
            if !text.is_empty() {
                let name = format!("{} {}", name(programs), table.name());
                tables.push(KernelTable { name, text: Some(text) });
            }
        }
    }
    tables
}

fn name(programs: &Programs) -> String {
    let program = match programs.family() {
        IpFamily::V4 => "iptables",
        IpFamily::V6 => "ip6tables",
    };
    format!("{program}-{}", programs.flavour())
}

/// Writes the rules of the backend's chains, and those that lead to these, as `iptables-save` does;
/// not more than `most` bytes, and the line that goes beyond them.
fn text(chains: &[(&str, &[String])], names: &ChainNames, most: usize) -> String {
    let mut text = String::new();
    for (chain, rules) in chains {
        let is_own = names.has(chain);
        if is_own {
            let _ = writeln!(text, ":{chain} - [0:0]");
        }
        for rule in rules.iter() {
            if text.len() > most {
                return text + KernelTable::CUT;
            }
            if is_own || target(rule).is_some_and(|to| names.has(to)) {
                let _ = writeln!(text, "-A {chain} {rule}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::names::KUBE_PROXY;

    #[test]
    fn the_text_has_our_chains_and_what_leads_to_them_up_to_a_limit() {
        let rules = |rules: &[&str]| rules.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (fallen, jump) = (rules(&["-j DROP", "-j KUBE-SERVICES"]), rules(&["-j A", "-j B"]));
        let chains = [("INPUT", &fallen[..]), ("KUBE-SERVICES", &jump), ("OTHER", &jump)];
        let whole = "-A INPUT -j KUBE-SERVICES\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j A\n\
                     -A KUBE-SERVICES -j B\n";
        assert_eq!(text(&chains, &KUBE_PROXY, usize::MAX), whole);
        let cut = "-A INPUT -j KUBE-SERVICES\n:KUBE-SERVICES - [0:0]\n# there is more\n";
        assert_eq!(text(&chains, &KUBE_PROXY, 30), cut);
    }
}
