//! Chains and rules of iptables for programs that own a few of them.
//!
//! The crate runs the programs of either [`Flavour`] (`iptables-legacy` and `iptables-nft`) for
//! either IP family, never longer than a [limit](TimeLimits). Callers bring the names of their
//! chains; everything else in the tables is left alone.
//!
//! ```no_run
//! use switchyard_model::PerFamily;
//! use switchyard_xtables::{
//!     Chain, Changes, InstalledPrograms, ProgramOptions, RuleText, Table,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The flavour that this host uses, for both families if possible.
//! let installed = InstalledPrograms::find(&ProgramOptions::default());
//! let tools = installed.choose(None, PerFamily { v4: true, v6: true })?.usable()?;
//! for programs in tools.iter() {
//!     let dump = programs.save()?;
//!     let rule = RuleText::new().comment("no telnet").jump("DROP");
//!     if dump.chain(Table::Filter, "MY-CHAIN") != Some(&[rule.clone()]) {
//!         let mut changes = Changes::default();
//!         let chain = Chain { name: "MY-CHAIN".into(), rules: vec![rule] };
//!         changes.write_chain(Table::Filter, chain);
//!         programs.restore(&changes.to_text())?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! - [`InstalledPrograms`] and [`Tools`]: which programs a node has, and which flavour it uses.
//! - [`Programs`]: the programs of one flavour and family: save, restore, check.
//! - [`RuleText`], [`Changes`] and [`Dump`]: rules, what `iptables-restore` reads, and what
//!   `iptables-save` prints.
//! - [`service_rules`]: the rules that kube-proxy's modes have in common.
//! - [`OwnedChains`] and [`remove`]: removal of a program's chains of both flavours, without any of
//!   the programs.
//! - [`TableMonitor`]: reports that another program changed the tables.

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

pub use self::{
    chains::{Chain, Jump, OwnedChains, Table},
    changes::Changes,
    dump::{Dump, Unreadable},
    leftovers::{LeftoverError, remove},
    monitor::{Alteration, Fingerprint, MonitorError, TableMonitor, TableRecord, Watched},
    programs::{
        Flavour, InstalledPrograms, MissingPrograms, ProgramOptions, Programs, Restored,
        TimeLimits, ToolError, Tools, Version,
    },
    rule::{Recent, RuleText, target},
};
