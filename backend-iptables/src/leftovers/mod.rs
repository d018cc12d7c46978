//! Removes everything that this backend, or kube-proxy, has programmed, of both flavours.
//!
//! Without any program: who changes to nftables mode may have an image without them, and rules
//! that stay would go on translating to endpoints that are gone, before ours see a packet. What
//! the programs would do is asked of the kernel directly ([`nft`], [`legacy`]), which takes
//! CAP_NET_ADMIN and nothing else.
//!
//! What stays is the chain KUBE-FIREWALL with the jumps to it. It is the kubelet's as well, and as
//! long as `route_localnet` stays on, which nothing switches off, it protects what listens on
//! loopback addresses. kube-proxy leaves it, too.

mod legacy;
mod nft;

pub(crate) use self::legacy::Kernel;

use std::io;

use proxy_core::model::IpFamily;

use crate::layout::{
    Table, fixed,
    names::{self, chain},
};

/// How often it is tried again if somebody else changes rules at the same time.
const ATTEMPTS: usize = 10;

/// Why rules could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum LeftoverError {
    /// nf_tables did not do it.
    #[error("cannot remove rules of iptables-nft")]
    Nft(#[from] netlink::Error),
    /// x_tables did not do it.
    #[error("cannot {action} the table {table} of iptables-legacy")]
    Legacy {
        /// `read` or `replace`.
        action: &'static str,
        /// The table.
        table: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The kernel's table has an unknown form.
    #[error("the table {table} of iptables-legacy cannot be understood")]
    Malformed {
        /// The table.
        table: &'static str,
    },
    /// Others changed rules all the time.
    #[error("others do not stop changing rules")]
    Busy,
}

/// Removes the rules of both flavours and both families. Whatever fails, the rest is done; the
/// first error is returned.
pub(crate) fn remove() -> Result<(), LeftoverError> {
    let mut result = Ok(());
    for family in IpFamily::ALL {
        result = result.and(nft::remove(family));
        result = result.and(legacy::remove(family));
    }
    result
}

/// Whether a chain is one that we make.
fn is_ours(table: Table, name: &str) -> bool {
    match table {
        Table::Mangle => name == chain::CANARY,
        Table::Filter => [
            chain::CANARY,
            chain::SERVICES,
            chain::EXTERNAL_SERVICES,
            chain::NODE_PORTS,
            chain::FORWARD,
            chain::PROXY_FIREWALL,
        ]
        .contains(&name),
        Table::Nat => {
            let fixed = [
                chain::CANARY,
                chain::SERVICES,
                chain::NODE_PORTS,
                chain::MARK_MASQ,
                chain::POSTROUTING,
            ];
            fixed.contains(&name) || names::is_of_service_port(name)
        }
    }
}

/// Whether we lead from one chain to the other. Who else leads to our chains keeps them there,
/// without rules.
fn is_our_jump(table: Table, from: &str, to: &str) -> bool {
    fixed::jumps().iter().any(|jump| (jump.table, jump.from, jump.to) == (table, from, to))
}
