//! A check whether chains and jumps are still there.

use std::collections::BTreeSet;

use crate::{
    netlink::Error,
    xtables::{Flavour, Programs, Table, nft_tables, programs::ToolError},
};

use super::Watched;

#[derive(Debug, thiserror::Error)]
pub(super) enum CheckError {
    #[error("a program failed")]
    Tool(#[from] ToolError),
    #[error("nf_tables cannot be read")]
    Netlink(#[from] Error),
}

/// Checks a family: the legacy flavour by its programs, the nft flavour by netlink, which takes
/// less than a millisecond. A jump of the nft flavour counts if it leads from the same chain to the
/// same chain, whatever else the rule matches.
pub(super) fn check(programs: &Programs, watched: &Watched) -> Result<bool, CheckError> {
    match programs.flavour() {
        Flavour::Legacy => Ok(ask_programs(programs, watched)?),
        Flavour::Nft => Ok(ask_netlink(programs, watched)?),
    }
}

fn ask_programs(programs: &Programs, watched: &Watched) -> Result<bool, ToolError> {
    for table in Table::ALL {
        if !programs.check(&["-t", table.name(), "-S", watched.canary])? {
            return Ok(false);
        }
    }
    for jump in &watched.jumps {
        if !programs.check_rule(jump.table, jump.from, &jump.rule)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn ask_netlink(programs: &Programs, watched: &Watched) -> Result<bool, Error> {
    let family = programs.family();
    let mut socket = nft_tables::open()?;
    for table in Table::ALL {
        if !nft_tables::has_chain(&mut socket, family, table, watched.canary)? {
            return Ok(false);
        }
    }
    let sources: BTreeSet<(Table, &str)> =
        watched.jumps.iter().map(|jump| (jump.table, jump.from)).collect();
    for (table, from) in sources {
        let found =
            nft_tables::rules(&mut socket, family, Some((table, from)), |at, chain, _, to| {
                to.filter(|_| (at, chain) == (table, from)).map(str::to_owned)
            })?;
        let mut wanted =
            watched.jumps.iter().filter(|jump| (jump.table, jump.from) == (table, from));
        if !wanted.all(|jump| found.iter().any(|to| *to == jump.to)) {
            return Ok(false);
        }
    }
    Ok(true)
}
