//! The packet filter's part: marks, refusals and drops, by sets and a few rules.
//!
//! IPVS only translates. The rules before it have the packet masqueraded, limit load balancer IPs to
//! their source ranges, and keep programs of the node off the addresses of Services.
//!
//! - [`rules`]: the chains, as iptables writes them.
//! - [`xtables`]: sets of ipset, and rules of iptables.
//! - [`nft`]: a table of nftables, for nodes without iptables.

pub(crate) mod nft;
pub(crate) mod rules;
pub(crate) mod xtables;

use std::{collections::HashSet, net::IpAddr, time::Duration};

use switchyard_core::{error::ErrorChain, model::IpFamily, state::NodeState};
use switchyard_netlink::ipset::Entry;
use switchyard_xtables::Changes;

use self::{
    nft::{NftError, NftFilter},
    xtables::{Xtables, XtablesError},
};
use crate::{
    layout::{exceptions::Exceptions, node_addresses},
    leftovers,
    sets::Set,
};

/// What the rules of a family depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleInputs<'a> {
    pub(crate) family: IpFamily,
    /// The bit of the packet mark that has a packet masqueraded.
    pub(crate) mark: u32,
    /// The node's settings.
    pub(crate) node: &'a NodeState,
    /// The rules of single frontends.
    pub(crate) exceptions: &'a Exceptions,
}

/// An entry of a set of a family.
pub(crate) type FamilyEntry = (IpFamily, Set, Entry);

/// The sets and rules of this node.
///
/// All entries of sets are those of [`layout::entries`](crate::layout::entries), and those of
/// [`Set::Bound`].
#[derive(Debug)]
pub(crate) enum Filter {
    Xtables(Xtables),
    Nft(NftFilter),
}

/// Why sets or rules could not be changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    #[error(transparent)]
    Xtables(#[from] XtablesError),
    #[error(transparent)]
    Nft(#[from] NftError),
}

impl FilterError {
    /// The lines that `iptables-restore` is known to have refused.
    pub(crate) fn refused_lines(&self) -> Vec<&str> {
        match self {
            Self::Xtables(XtablesError::Tool(error)) => error.refused_lines().collect(),
            _ => Vec::new(),
        }
    }

    /// The entries without which the kernel may take the rest, if that is known.
    pub(crate) fn refused_entries(&self) -> &[FamilyEntry] {
        match self {
            Self::Xtables(_) => &[],
            Self::Nft(error) => error.refused_entries(),
        }
    }
}

impl Filter {
    /// Makes sets and rules hold what they should, but leaves entries that nobody wants. Rules that take the
    /// place of those of iptables mode are left to [`Self::finish`].
    pub(crate) fn compare(
        &mut self,
        wanted: &HashSet<FamilyEntry>,
        inputs: &[RuleInputs<'_>],
    ) -> Result<Compared, FilterError> {
        match self {
            Self::Xtables(filter) => Ok(filter.compare(wanted, inputs)?),
            Self::Nft(filter) => Ok(filter.compare(wanted, inputs)?),
        }
    }

    /// Does the rest of a comparison, when virtual servers serve, at addresses that are the node's.
    pub(crate) fn finish(&mut self, late: &LateRules, done: &mut Done) -> Result<(), FilterError> {
        if let Self::Xtables(filter) = self {
            filter.write_rules(&late.0, done)?;
        }
        Ok(())
    }

    /// Removes what the other packet filter has, if iptables was installed or removed since the program ran
    /// last. Only now, so that all traffic was masqueraded until now.
    pub(crate) fn remove_other(&mut self) {
        let (is_alone, removed) = match self {
            Self::Xtables(Xtables { is_alone, .. }) | Self::Nft(NftFilter { is_alone, .. })
                if *is_alone =>
            {
                return;
            }
            Self::Xtables(filter) => (&mut filter.is_alone, leftovers::remove_tables()),
            Self::Nft(filter) => (&mut filter.is_alone, leftovers::remove_chains_and_sets()),
        };
        match removed {
            Ok(()) => *is_alone = true,
            Err(error) => tracing::warn!(
                err = %ErrorChain(&error),
                "Failed to remove ipvs mode's previous rules; retrying"
            ),
        }
    }

    /// Adds and deletes entries, and returns those that were refused. Entries that are there already, or gone
    /// already, are no errors.
    pub(crate) fn commit(
        &mut self,
        done: &mut Done,
        add: &[FamilyEntry],
        delete: &[FamilyEntry],
    ) -> Result<Vec<(FamilyEntry, FilterError)>, FilterError> {
        match self {
            Self::Xtables(filter) => {
                let refused = filter.commit(done, add, delete)?.into_iter();
                Ok(refused.map(|(entry, error)| (entry, error.into())).collect())
            }
            Self::Nft(filter) => {
                filter.commit(done, add, delete)?;
                Ok(Vec::new())
            }
        }
    }

    /// Writes the rules that depend on Services anew.
    pub(crate) fn write_exceptions(
        &mut self,
        inputs: &RuleInputs<'_>,
        done: &mut Done,
    ) -> Result<(), FilterError> {
        match self {
            Self::Xtables(filter) => Ok(filter.write_exceptions(inputs, done)?),
            Self::Nft(filter) => Ok(filter.write_exceptions(inputs, done)?),
        }
    }
}

/// What a comparison found.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    pub(crate) done: Done,
    /// Entries that were missing, and were added.
    pub(crate) missing: Vec<FamilyEntry>,
    /// Those of them that were refused.
    pub(crate) refused: Vec<(FamilyEntry, FilterError)>,
    /// Entries that nobody wants. They are still there.
    pub(crate) stale: Vec<FamilyEntry>,
    /// Chains and the like that were missing or altered, and were written, or will be: what they are, and
    /// their names.
    pub(crate) chains: Vec<(IpFamily, String)>,
    pub(crate) late: LateRules,
}

/// Rules that take the place of those of iptables mode, which translate until then.
#[derive(Debug, Default)]
pub(crate) struct LateRules(Vec<(IpFamily, Changes)>);

/// What was done to sets and rules.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) added: usize,
    pub(crate) removed: usize,
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    pub(crate) commit: Duration,
    pub(crate) waited: Duration,
}

impl RuleInputs<'_> {
    /// The addresses of the node that serve node ports.
    pub(crate) fn node_addresses(&self) -> impl Iterator<Item = IpAddr> + use<'_> {
        node_addresses(self.node, self.family)
    }
}
