//! The rules for marked packets, which kube-proxy's iptables and ipvs modes have in common: packets
//! are marked in the nat table, masqueraded when they leave, and accepted when they are forwarded.

use crate::xtables::RuleText;

/// Returns the rules of `KUBE-MARK-MASQ`, which has packets masqueraded by the mark `mark`.
pub fn mark(mark: u32) -> Vec<String> {
    vec![RuleText::new().jump(&format!("MARK --set-xmark {mark:#x}/{mark:#x}"))]
}

/// Returns the rules of `KUBE-POSTROUTING`, which masquerades marked packets.
pub fn postrouting(mark: u32) -> Vec<String> {
    vec![
        RuleText::new().matching(&format!("-m mark ! --mark {mark:#x}/{mark:#x}")).jump("RETURN"),
        // The packet may pass here again, encapsulated, and must not be masqueraded twice.
        RuleText::new().jump(&format!("MARK --set-xmark {mark:#x}/0x0")),
        RuleText::new()
            .comment("kubernetes service traffic requiring SNAT")
            .jump("MASQUERADE --random-fully"),
    ]
}

/// Returns the rules of `KUBE-FORWARD`, which accepts traffic of Services where the default is to
/// drop it.
pub fn forward(mark: u32) -> Vec<String> {
    vec![
        RuleText::new()
            .comment("kubernetes forwarding rules")
            .matching(&format!("-m mark --mark {mark:#x}/{mark:#x}"))
            .jump("ACCEPT"),
        RuleText::new()
            .comment("kubernetes forwarding conntrack rule")
            .ct_state("RELATED,ESTABLISHED")
            .jump("ACCEPT"),
    ]
}
