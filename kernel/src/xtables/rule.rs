//! Rules as text, in exactly the words and the order of `iptables-save`, so that what the kernel
//! holds can be compared with what it should hold: addresses, interface, protocol, matches in the
//! order in which they were given, target.

use std::{fmt::Write, net::IpAddr, net::SocketAddr, time::Duration};

use ipnet::IpNet;
use switchyard_model::{IpFamily, LocalPods, Protocol};

/// The longest comment that the kernel keeps (`XT_MAX_COMMENT_LEN`, without the zero).
const LONGEST_COMMENT: usize = 255;

/// A builder of one rule. The methods must be called in the order in which they are listed.
#[derive(Clone, Debug, Default)]
pub struct RuleText(String);

impl RuleText {
    /// Returns a rule that matches every packet.
    pub fn new() -> Self {
        Self::default()
    }

    fn push(mut self, part: std::fmt::Arguments<'_>) -> Self {
        if !self.0.is_empty() {
            self.0.push(' ');
        }
        // Writing to a String does not fail.
        let _ = self.0.write_fmt(part);
        self
    }

    /// Matches packets from a network.
    pub fn source(self, net: impl Into<IpNet>) -> Self {
        self.push(format_args!("-s {}", net.into().trunc()))
    }

    /// Matches packets to an address.
    pub fn destination(self, ip: IpAddr) -> Self {
        self.push(format_args!("-d {}", IpNet::from(ip)))
    }

    /// Matches packets to any address outside a network.
    pub fn destination_not(self, net: &str) -> Self {
        self.push(format_args!("! -d {net}"))
    }

    /// Matches packets that a pod of this node sends.
    pub fn sent_by_local_pod(self, pods: &LocalPods) -> Self {
        match pods {
            LocalPods::Source(net) => self.source(*net),
            LocalPods::Interface(name) => self.push(format_args!("-i {name}")),
            LocalPods::InterfacePrefix(prefix) => self.push(format_args!("-i {prefix}+")),
        }
    }

    /// Matches packets that no pod of this node sends.
    pub fn not_sent_by_local_pod(self, pods: &LocalPods) -> Self {
        match pods {
            LocalPods::Source(net) => self.push(format_args!("! -s {}", net.trunc())),
            LocalPods::Interface(name) => self.push(format_args!("! -i {name}")),
            LocalPods::InterfacePrefix(prefix) => self.push(format_args!("! -i {prefix}+")),
        }
    }

    /// Matches packets to `ip` that no pod of this node sends.
    pub fn not_sent_by_local_pod_to(self, pods: &LocalPods, ip: IpAddr) -> Self {
        match pods {
            LocalPods::Source(_) => self.not_sent_by_local_pod(pods).destination(ip),
            LocalPods::Interface(_) | LocalPods::InterfacePrefix(_) => {
                self.destination(ip).not_sent_by_local_pod(pods)
            }
        }
    }

    /// Matches packets of a protocol.
    pub fn protocol(self, protocol: Protocol) -> Self {
        self.push(format_args!("-p {}", protocol.as_lower()))
    }

    /// Adds a comment. Characters that could end its quotes, or the line, become underscores, and
    /// only the first 255 are kept.
    pub fn comment(self, comment: &str) -> Self {
        let plain = |c: char| match c {
            '"' | '\'' | '\\' => '_',
            c if c.is_ascii_graphic() || c == ' ' => c,
            _ => '_',
        };
        let text: String = comment.chars().map(plain).take(LONGEST_COMMENT).collect();
        self.push(format_args!("-m comment --comment \"{text}\""))
    }

    /// Matches packets to an address of the node.
    pub fn at_node(self) -> Self {
        self.push(format_args!("-m addrtype --dst-type LOCAL"))
    }

    /// Matches packets that the node itself sends.
    pub fn sent_by_node(self) -> Self {
        self.push(format_args!("-m addrtype --src-type LOCAL"))
    }

    /// Matches packets to a port.
    pub fn port(self, protocol: Protocol, port: u16) -> Self {
        self.push(format_args!("-m {} --dport {port}", protocol.as_lower()))
    }

    /// Matches connections in one of the states, such as `RELATED,ESTABLISHED`.
    pub fn ct_state(self, state: &str) -> Self {
        self.push(format_args!("-m conntrack --ctstate {state}"))
    }

    /// Matches `share` of `of` packets, at random. The kernel counts in units of 2^-31, and shows
    /// them rounded. A probability that would round to zero or one is one unit away from it, so
    /// that some packets match, and some do not.
    pub fn share(self, share: u64, of: u64) -> Self {
        const UNITS: f64 = 2_147_483_648.0;
        let units = (UNITS * (share as f64 / of as f64)).round().clamp(1.0, UNITS - 1.0);
        let probability = units / UNITS;
        self.push(format_args!("-m statistic --mode random --probability {probability:.11}"))
    }

    /// Uses the list of clients `list` of the `recent` match.
    pub fn recent(self, family: IpFamily, list: &str, use_: Recent) -> Self {
        let mask = match family {
            IpFamily::V4 => "255.255.255.255",
            IpFamily::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        };
        let this =
            match use_ {
                Recent::Remember => self.push(format_args!("-m recent --set")),
                Recent::Check(timeout) => self
                    .push(format_args!("-m recent --rcheck --seconds {} --reap", seconds(timeout))),
                Recent::CheckAndRemember(timeout) => self
                    .push(format_args!("-m recent --update --seconds {} --reap", seconds(timeout))),
            };
        this.push(format_args!("--name {list} --mask {mask} --rsource"))
    }

    /// Adds any other match.
    pub fn matching(self, text: &str) -> Self {
        self.push(format_args!("{text}"))
    }

    /// Ends the rule with a jump to a chain, or to a target, perhaps with options.
    pub fn jump(self, target: &str) -> String {
        self.push(format_args!("-j {target}")).0
    }

    /// Ends the rule with a translation to an endpoint.
    pub fn translate(self, endpoint: SocketAddr) -> String {
        self.push(format_args!("-j DNAT --to-destination {endpoint}")).0
    }
}

/// A use of a list of clients.
#[derive(Clone, Copy, Debug)]
pub enum Recent {
    /// Remembers the sender.
    Remember,
    /// Matches senders that were remembered within this time.
    Check(Duration),
    /// Matches senders that were remembered within this time, and remembers them again.
    CheckAndRemember(Duration),
}

/// The kernel rejects zero seconds.
fn seconds(timeout: Duration) -> u64 {
    timeout.as_secs().max(1)
}

/// Returns the chain or target that a rule leads to.
pub fn target(rule: &str) -> Option<&str> {
    let mut words = Words(rule);
    while let Some(word) = words.next() {
        match word {
            "-j" | "-g" => return words.next(),
            // A comment may contain any words.
            "--comment" => drop(words.next()),
            _ => {}
        }
    }
    None
}

/// Iterates over the words of a rule; text in quotes is one word.
pub(crate) struct Words<'a>(pub(crate) &'a str);

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        let (word, rest) = match text.strip_prefix('"') {
            Some(quoted) => quoted.split_at(end_of_quote(quoted)),
            None => text.split_at(text.find(' ').unwrap_or(text.len())),
        };
        self.0 = rest.strip_prefix(['"', ' ']).unwrap_or(rest);
        (!text.is_empty()).then_some(word)
    }
}

/// Returns the offset of the first quote that no backslash precedes.
fn end_of_quote(text: &str) -> usize {
    let mut is_escaped = false;
    let is_end = |(_, c): &(usize, char)| {
        let ends = *c == '"' && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        ends
    };
    text.char_indices().find(is_end).map_or(text.len(), |(i, _)| i)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_cannot_end_the_rule() {
        let rule = RuleText::new().comment("a\"b\n-A INPUT -j DROP\\").jump("RETURN");
        assert_eq!(rule, "-m comment --comment \"a_b_-A INPUT -j DROP_\" -j RETURN");
        assert_eq!(target(&rule), Some("RETURN"));
        let long = RuleText::new().comment(&"x".repeat(400)).jump("RETURN");
        assert_eq!(long.matches('x').count(), 255);
    }

    #[test]
    fn probabilities_are_those_that_the_kernel_can_hold() {
        let rule = |share, of| RuleText::new().share(share, of).jump("X");
        let expected =
            |probability| format!("-m statistic --mode random --probability {probability} -j X");
        assert_eq!(rule(1, 2), expected("0.50000000000"));
        assert_eq!(rule(1, 3), expected("0.33333333349"));
        assert_eq!(rule(7, 10), expected("0.70000000019"));
        // Neither never nor always: 2^-31, and 1 - 2^-31.
        assert_eq!(rule(1, u64::from(u32::MAX) + 1), expected("0.00000000047"));
        assert_eq!(rule(u64::from(u32::MAX), u64::from(u32::MAX) + 1), expected("0.99999999953"));
    }

    #[test]
    fn a_rule_without_a_target_has_none() {
        assert_eq!(target("-m comment --comment \"KUBE-FW-X has nothing\""), None);
        assert_eq!(target("-s 10.0.0.0/8 -j DNAT --to-destination 10.0.0.1:80"), Some("DNAT"));
        assert_eq!(target(r#"-m comment --comment "a \" -j KUBE-SERVICES""#), None);
        assert_eq!(target("-m comment --comment -j -j KUBE-SERVICES"), Some("KUBE-SERVICES"));
        assert_eq!(target(r#"-m comment --comment "" -g X"#), Some("X"));
    }

    #[test]
    fn quoted_words_are_one() {
        let words: Vec<_> = Words("-m comment --comment \"a b\" -j X").collect();
        assert_eq!(words, ["-m", "comment", "--comment", "a b", "-j", "X"]);
        assert_eq!(Words("  ").count(), 0);
        assert_eq!(Words("a \"b").collect::<Vec<_>>(), ["a", "b"]);
    }
}
