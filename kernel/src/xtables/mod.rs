//! iptables for programs that own a few chains.
//!
//! A program of iptables never runs longer than a [limit](TimeLimits). Callers bring the names of
//! their chains; everything else in the tables is left alone.

mod chains;
mod changes;
mod dump;
mod leftovers;
mod legacy_table;
mod lock;
mod monitor;
mod nft_tables;
mod programs;
mod rule;
pub mod service_rules;
#[cfg(feature = "testing")]
pub mod testing;

pub use self::{
    chains::{Chain, Jump, OwnedChains, Table},
    changes::Changes,
    dump::{Dump, Unreadable},
    leftovers::{LeftoverError, has_legacy_chains, legacy_tables, remove},
    monitor::{
        Alteration, Fingerprint, MonitorError, OwnChange, TableMonitor, TableRecord, Watched,
    },
    programs::{
        Flavour, InstalledPrograms, MissingPrograms, ProgramOptions, Programs, Restored,
        TimeLimits, ToolError, Tools, Version,
    },
    rule::{Recent, RuleText, target},
};
