//! The programs `iptables`, `iptables-save` and `iptables-restore`, of either flavour and for
//! either family.

mod error;
mod find;
mod run;

use std::{fmt, path::PathBuf, time::Duration};

use switchyard_model::{IpFamily, words};

pub use self::{
    error::{MissingPrograms, ToolError},
    find::{InstalledPrograms, Tools},
    run::Restored,
};

/// Where the rules of the `iptables` programs end up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flavour {
    /// The kernel's own x_tables, where each change replaces a whole table.
    Legacy,
    /// nftables, in tables that `iptables-nft` keeps there.
    Nft,
}

// The words in the names of programs.
words! { Flavour { Legacy = "legacy", Nft = "nft" } }

impl Flavour {
    /// The flavour that is not this one.
    pub fn other(self) -> Self {
        match self {
            Self::Legacy => Self::Nft,
            Self::Nft => Self::Legacy,
        }
    }
}

/// The longest time that programs may run. A program that takes longer is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// For `iptables-save` and `iptables-restore`. Restoring 70,000 rules takes about ten seconds
    /// on a small machine, and several times that on a slow or busy node.
    pub tables: Duration,
    /// For everything else: the version, and checks of single rules. Must be longer than the five
    /// seconds for which a program waits for the xtables lock.
    pub single: Duration,
}

impl Default for TimeLimits {
    /// Two minutes for whole tables, and 30 seconds for everything else.
    fn default() -> Self {
        Self { tables: Duration::from_secs(120), single: Duration::from_secs(30) }
    }
}

/// The programs in use, and their options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramOptions {
    /// The directory of the programs; `None` for the directories of `PATH`.
    pub directory: Option<PathBuf>,
    /// The longest time that programs may run.
    pub limits: TimeLimits,
    /// The file of the xtables lock; `None` for the one that the environment variable
    /// `XTABLES_LOCKFILE` names, or else `/run/xtables.lock`.
    pub lock_file: Option<PathBuf>,
}

/// The version of a program: major, minor, patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The programs of one flavour for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    flavour: Flavour,
    family: IpFamily,
    version: Version,
    main: PathBuf,
    save: PathBuf,
    restore: PathBuf,
    limits: TimeLimits,
    lock_file: Option<PathBuf>,
    /// Where the programs run, if not here.
    #[cfg(feature = "testing")]
    machine: Option<crate::xtables::testing::SharedMachine>,
}

impl Programs {
    /// The machine on which the programs run, if not on this one.
    #[cfg(feature = "testing")]
    pub(crate) fn machine(&self) -> Option<&crate::xtables::testing::SharedMachine> {
        self.machine.as_ref()
    }

    /// The flavour.
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// The family whose tables the programs change.
    pub fn family(&self) -> IpFamily {
        self.family
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.version
    }
}
