//! The kernel's ruleset, as `nft` lists it.

use packet_rig::{NetNs, RigError};

/// The size of a ruleset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    /// The number of chains.
    pub chains: usize,
    /// The number of rules in all chains.
    pub rules: usize,
}

/// Counts the chains and rules of `table ip kube-proxy`.
pub fn count_rules(node: &NetNs) -> Result<RuleCount, RigError> {
    let arguments = ["--stateless", "list", "table", "ip", "kube-proxy"];
    Ok(count(&node.output("nft", &arguments, "")?))
}

/// Counts chains and rules in a table as `nft` prints it: every line of a chain is a rule, except the
/// declaration of the chain.
fn count(listing: &str) -> RuleCount {
    let mut seen = RuleCount::default();
    let mut in_chain = false;
    for line in listing.lines().map(str::trim) {
        match line {
            "}" => in_chain = false,
            _ if line.starts_with("chain ") => {
                seen.chains += 1;
                in_chain = true;
            }
            _ if in_chain && !line.is_empty() && !is_declaration(line) => seen.rules += 1,
            _ => {}
        }
    }
    seen
}

fn is_declaration(line: &str) -> bool {
    line.starts_with("type ") && line.contains(" hook ") || line.starts_with("comment ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_and_rules_are_counted() {
        let listing = "\
table ip kube-proxy {
	comment \"rules for kube-proxy\"

	map endpoints {
		type ipv4_addr : ipv4_addr
		elements = { 10.96.0.10 : 10.244.1.4,
			     10.96.0.11 : 10.244.1.5 }
	}

	chain services {
		ip daddr vmap @service-ips
		fib daddr type local goto nodeports
	}

	chain nat-prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		comment \"here\"
		goto services
	}
}
";
        assert_eq!(count(listing), RuleCount { chains: 2, rules: 3 });
    }
}
