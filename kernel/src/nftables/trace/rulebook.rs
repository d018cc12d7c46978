//! Chains and rules, as far as people ask about them.

use super::super::{
    abi::{chain, expression, message, rule},
    gates::ChainPath,
    listing::{dump, family_name, get, number_of_family_name},
    netlink::userdata,
};
use crate::netlink::{Attributes, Error, Socket, Writer};

/// A base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BaseChainInfo {
    /// The name.
    pub name: ChainPath,
    /// The hook, by the name that nft has for it.
    pub hook: &'static str,
    /// The priority.
    pub priority: i32,
    /// The type: `filter`, `nat` or `route`.
    pub kind: String,
}

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleInfo {
    /// The words of nft for what the rule does besides its verdict, such as `reject` and `dnat`;
    /// for a rule of iptables, the name of its target.
    pub actions: Vec<String>,
    /// The comment.
    pub comment: Option<String>,
}

/// A reader of chains and rules.
#[derive(Debug)]
pub struct Rulebook(Socket);

impl Rulebook {
    /// Reads in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If no socket can be opened.
    pub fn open() -> Result<Self, Error> {
        Ok(Self(Socket::open(libc::NETLINK_NETFILTER)?))
    }

    /// The base chains of all tables.
    ///
    /// # Errors
    /// If the kernel refuses, as without CAP_NET_ADMIN, or does not answer.
    pub fn base_chains(&mut self) -> Result<Vec<BaseChainInfo>, Error> {
        dump(&mut self.0, message::GET_CHAIN, 0, |_| {}, base_chain)
    }

    /// A rule; `None` if it is gone.
    ///
    /// # Errors
    /// If the kernel refuses for another reason, or does not answer.
    pub fn rule(&mut self, name: &ChainPath, handle: u64) -> Result<Option<RuleInfo>, Error> {
        let fill = |w: &mut Writer| {
            w.string(rule::TABLE, &name.table);
            w.string(rule::CHAIN, &name.chain);
            w.be64(rule::HANDLE, handle);
        };
        get(&mut self.0, message::GET_RULE, number_of_family_name(name.family), fill, rule_info)
    }
}

fn base_chain(family: u8, read: Attributes<'_>) -> Option<BaseChainInfo> {
    let text = |kind| read.text(kind).map(str::to_owned);
    let hook = read.find_kind(chain::HOOK)?.nested();
    let family = family_name(family)?;
    let hooks = match family {
        "netdev" => &["ingress", "egress"][..],
        "arp" => &["input", "output"],
        _ => &["prerouting", "input", "forward", "output", "postrouting", "ingress"],
    };
    Some(BaseChainInfo {
        name: ChainPath { family, table: text(chain::TABLE)?, chain: text(chain::NAME)? },
        hook: hooks.get(hook.be32(chain::HOOK_NUMBER)? as usize)?,
        priority: hook.be32(chain::HOOK_PRIORITY)?.cast_signed(),
        kind: text(chain::TYPE)?,
    })
}

fn rule_info(read: Attributes<'_>) -> RuleInfo {
    let expressions = read.find_kind(rule::EXPRESSIONS).map(|list| list.nested());
    let comment = read.find_kind(rule::USERDATA);
    let comment = comment.and_then(|data| userdata::comment(data.payload, userdata::abi::COMMENT));
    let actions = expressions.into_iter().flatten().filter_map(action).collect();
    RuleInfo { actions, comment: comment.map(str::to_owned) }
}

/// The word for what an expression does with a packet; `None` if it only looks.
fn action(each: crate::netlink::Attribute<'_>) -> Option<String> {
    let read = each.nested();
    let data = || Some(read.find_kind(expression::DATA)?.nested());
    let word = match read.text(expression::NAME)? {
        "nat" => match data()?.be32(expression::NAT_TYPE)? {
            expression::NAT_DNAT => "dnat",
            _ => "snat",
        },
        "masq" => "masquerade",
        "redir" => "redirect",
        "target" => data()?.text(expression::TARGET_NAME)?,
        word @ ("reject" | "queue" | "synproxy" | "tproxy" | "notrack") => word,
        _ => return None,
    };
    Some(word.to_owned())
}
