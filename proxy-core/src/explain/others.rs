//! Tables of other programs in the way of a Service's connections.

use std::net::{IpAddr, SocketAddr};

use super::client::Client;
use crate::model::{Code, IpFamily};

/// The most endpoints that are named.
const MOST_NAMED: usize = 3;

/// A chain of another program that drops each new connection that comes to it, or those to some
/// endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct ClosedChain {
    /// The table, behind its family: `inet firewalld`.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The name of the chain's hook.
    pub hook: &'static str,
    /// The priority at the hook.
    pub priority: i32,
    /// The family of the packets; `None` for both.
    pub family: Option<IpFamily>,
    /// The clients whose packets come to the chain on their way to an endpoint.
    pub clients: ChainClients,
    /// The endpoints whose connections it drops; `None` for all.
    pub only: Option<Vec<SocketAddr>>,
    /// The program that has the table; `None` if it is not known.
    pub program: Option<String>,
    /// The remedy.
    pub remedy: String,
}

/// The clients of a [`ClosedChain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum ChainClients {
    /// Pods and other hosts.
    ExceptNode,
    /// The node itself.
    Node,
    /// Every client, as the node itself sends to endpoints.
    ByNode,
}

impl ClosedChain {
    /// The code of the finding that there is such a chain.
    pub const CODE: Code = Code::new("SWY0301");

    /// Whether the chain drops connections from this client to an endpoint. What the node sends to
    /// itself passes the loopback interface, about which nothing is known.
    pub(super) fn drops(&self, client: Client, to: SocketAddr, node: &[IpAddr]) -> bool {
        let is_passed = match self.clients {
            ChainClients::ExceptNode => client != Client::Node,
            ChainClients::Node => client == Client::Node,
            ChainClients::ByNode => true,
        };
        let ip = to.ip();
        let has_family = self.family.is_none_or(|family| family == IpFamily::of(&ip));
        let is_meant = self.only.as_ref().is_none_or(|only| only.contains(&to));
        is_passed && is_meant && has_family && !node.contains(&ip) && !ip.is_loopback()
    }

    /// Names the table, and its program if the name does not: `table ip filter (of ufw)`.
    pub fn table(&self) -> String {
        let named = self.program.as_ref().filter(|program| !self.table.ends_with(&***program));
        let program = named.map(|program| format!(" (of {program})"));
        format!("table {}{}", self.table, program.unwrap_or_default())
    }

    /// Names those whose new connections the chain drops: `of this node`.
    pub fn whose(&self) -> &'static str {
        match self.clients {
            ChainClients::ExceptNode => "of pods and other hosts",
            ChainClients::Node | ChainClients::ByNode => "of this node",
        }
    }

    /// The reason why the chain drops them.
    pub fn why(&self) -> String {
        let Self { chain, hook, priority, .. } = self;
        let Some(only) = &self.only else {
            return format!(
                "no rule of the chain {chain} (hook {hook}, priority {priority}) accepts one"
            );
        };
        let named: Vec<String> = only.iter().take(MOST_NAMED).map(ToString::to_string).collect();
        let more = if only.len() > MOST_NAMED { ", ..." } else { "" };
        let to = named.join(", ");
        format!(
            "rules of the chain {chain} (hook {hook}, priority {priority}) drop those to {to}{more}"
        )
    }
}
