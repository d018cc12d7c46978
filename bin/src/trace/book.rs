//! Chains, rules and interfaces, read as they are asked for.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use switchyard_kernel::{
    netlink::Error,
    nftables::{
        gates::ChainPath,
        trace::{BaseChainInfo, RuleInfo, Rulebook},
    },
    route::{self, RoutedBy},
};

/// The most rules and interfaces that are remembered.
const MOST: usize = 1024;
/// The time between two lists of chains.
const PAUSE: Duration = Duration::from_secs(1);

/// A book of chains, rules and interfaces.
pub struct Book {
    reader: Rulebook,
    bases: Vec<BaseChainInfo>,
    listed: Instant,
    rules: BTreeMap<(ChainPath, u64), RuleInfo>,
    interfaces: BTreeMap<u32, String>,
}

impl Book {
    /// Lists the base chains.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer.
    pub fn open() -> Result<Self, Error> {
        let mut reader = Rulebook::open()?;
        let bases = reader.base_chains()?;
        let (rules, interfaces) = Default::default();
        Ok(Self { reader, bases, listed: Instant::now(), rules, interfaces })
    }

    /// A base chain; `None` if it is gone, or cannot be read.
    pub fn base(&mut self, name: &ChainPath) -> Option<BaseChainInfo> {
        let is_known = self.bases.iter().any(|base| base.name == *name);
        if !is_known && self.listed.elapsed() >= PAUSE {
            self.bases = self.reader.base_chains().unwrap_or_default();
            self.listed = Instant::now();
        }
        self.bases.iter().find(|base| base.name == *name).cloned()
    }

    /// A rule, without a description if it is gone or cannot be read.
    pub fn rule(&mut self, chain: &ChainPath, handle: u64) -> RuleInfo {
        if self.rules.len() >= MOST {
            self.rules.clear();
        }
        let reader = &mut self.reader;
        let read = || reader.rule(chain, handle).ok().flatten().unwrap_or_default();
        self.rules.entry((chain.clone(), handle)).or_insert_with(read).clone()
    }

    /// The name of an interface, or its number.
    pub fn interface(&mut self, index: u32) -> String {
        if self.interfaces.len() >= MOST {
            self.interfaces.clear();
        }
        let read = || {
            let name = route::interface_name(index).ok().flatten();
            name.unwrap_or_else(|| format!("interface {index}"))
        };
        self.interfaces.entry(index).or_insert_with(read).clone()
    }

    /// The gateway to a destination; `None` without one, or if it cannot be found out.
    pub fn next_hop(&self, to: IpAddr, by: RoutedBy, output: u32) -> Option<String> {
        let found = route::next_hop(to, by, output).ok().flatten();
        found.map(|gateway| gateway.to_string())
    }
}
