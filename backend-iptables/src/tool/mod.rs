//! The programs that everything goes through: `iptables`, `iptables-save` and `iptables-restore`,
//! of either flavour and for either family.
//!
//! - [`find`]: which programs there are, and which flavour the host uses.
//! - [`run`]: runs them, and waits for their lock.
//! - [`dump`]: reads what `iptables-save` prints.
//! - [`input`]: writes what `iptables-restore` reads.

pub(crate) mod dump;
pub(crate) mod find;
pub(crate) mod input;
pub(crate) mod run;

use std::{fmt, io, path::PathBuf};

use proxy_core::model::IpFamily;

/// Where the rules of the `iptables` programs end up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flavour {
    /// The kernel's own x_tables, replaced as a whole with each change.
    Legacy,
    /// nftables, in tables that `iptables-nft` keeps there.
    Nft,
}

impl Flavour {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Legacy, Self::Nft];

    /// The word in the names of programs: `legacy` or `nft`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Nft => "nft",
        }
    }

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Legacy => Self::Nft,
            Self::Nft => Self::Legacy,
        }
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The programs of one flavour for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Programs {
    pub(crate) flavour: Flavour,
    pub(crate) family: IpFamily,
    pub(crate) main: PathBuf,
    pub(crate) save: PathBuf,
    pub(crate) restore: PathBuf,
}

/// Why a program could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It could not be run.
    #[error("cannot run {program}")]
    Run {
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Somebody else has the lock, and keeps it.
    #[error("{program}: another program holds the xtables lock: {message}")]
    Locked {
        /// The program.
        program: String,
        /// What it printed.
        message: String,
    },
    /// It refused a line of its input.
    #[error("{program} refuses line {line}, `{text}`: {message}")]
    Refused {
        /// The program.
        program: String,
        /// The number of the line, from 1.
        line: usize,
        /// The line.
        text: String,
        /// What it printed.
        message: String,
    },
    /// It failed otherwise.
    #[error("{program} fails with {status}: {message}")]
    Failed {
        /// The program.
        program: String,
        /// Its exit status, or the signal that ended it.
        status: String,
        /// What it printed.
        message: String,
    },
    /// It cannot show a table, because there is something in it that it does not know.
    #[error("{program} cannot read the table {table}: it has rules that are not iptables'")]
    Incompatible {
        /// The program.
        program: String,
        /// The table.
        table: &'static str,
    },
}
