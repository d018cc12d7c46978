//! The backend: a [`Proxier`] on a [`Transport`].
//!
//! A sync is [`incremental`] as long as we know what the kernel holds, and [`full`] otherwise: at
//! the start, after a failure, and when asked for. Either makes [`changes`], which become one
//! transaction for both families. [`memory`] is what is kept between syncs.

mod changes;
mod drift;
mod full;
mod incremental;
mod memory;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use proxy_core::{
    model::PerFamily,
    proxier::{self, Proxier, ProxierError, SyncReport},
    state::{Delta, ResolvedServicePort, State},
};

use self::{changes::Changes, incremental::Update, memory::Memory};
use crate::{
    layout::{NftConfig, fixed::FixedSet, own},
    monitor::Monitor,
    netlink::Listener,
    ruleset::{Family, SetName, TableDump, Transaction},
    transport::{Transport, TransportError},
};

/// The mode that selects this backend.
const MODE: &str = "nftables";
/// How often a full sync is tried again if somebody else changes rulesets at the same time.
const ATTEMPTS: usize = 5;
/// Kernels before 6.2 keep references from elements of maps for a moment after a commit, and
/// refuse to delete the chains they led to; upstream waits as long.
const STALE_FOR: Duration = Duration::from_secs(1);

/// Programs Services with nftables. See the [crate's documentation](crate).
pub struct NftProxier {
    config: NftConfig,
    transport: Box<dyn Transport>,
    /// What the kernel should hold; `None` if we cannot tell.
    memory: Option<Memory>,
    /// Whether it does, as far as we know.
    is_sure: bool,
}

impl NftProxier {
    /// A backend that programs through `transport`. Does not touch the kernel.
    pub fn new(config: NftConfig, transport: Box<dyn Transport>) -> Self {
        Self { config, transport, memory: None, is_sure: false }
    }

    fn sync_changes(&mut self, state: &State, delta: &Delta) -> Result<SyncReport, TransportError> {
        let Some(memory) = self.memory.as_ref().filter(|_| self.is_sure) else {
            return self.sync_full(state, delta);
        };
        let mut update = Update::plan(&self.config, memory, state, delta);
        let (transactions, mut report) = into_transactions(std::mem::take(&mut update.changes));
        self.commit(&transactions, &mut report)?;
        if let Some(memory) = &mut self.memory {
            update.remember(memory);
        }
        let changed = delta.service_ports.iter().filter_map(|id| state.service_ports.get(id));
        report.skipped = skipped(changed);
        Ok(report)
    }

    fn sync_full(&mut self, state: &State, delta: &Delta) -> Result<SyncReport, TransportError> {
        let mut attempt = 1;
        loop {
            match self.try_sync_full(state, delta) {
                Err(error) if error.is_conflict() && attempt < ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    fn try_sync_full(
        &mut self,
        state: &State,
        delta: &Delta,
    ) -> Result<SyncReport, TransportError> {
        let mut dumps = PerFamily::default();
        for family in self.config.families() {
            *dumps.of_mut(family.into()) = self.transport.read(family, &all_sets(family))?;
        }
        let (changes, memory) = full::plan(&self.config, state, &dumps);
        let drift = self.memory.as_ref().map(|known| {
            let expected = Update::plan(&self.config, known, state, delta).changes;
            drift::find(&changes, &expected, known)
        });
        let (mut transactions, mut report) = into_transactions(changes);
        report.drift = drift.unwrap_or_default();
        let generation = |dump: &Option<TableDump>| dump.as_ref().and_then(|d| d.generation);
        if let Some(generation) = generation(&dumps.v4).or(generation(&dumps.v6)) {
            let mut expected = generation;
            for transaction in transactions[..2].iter_mut().filter(|t| !t.is_empty()) {
                transaction.expect_generation(expected);
                // What we commit counts as well; the kernel leaves out 0.
                expected = expected.checked_add(1).unwrap_or(1);
            }
        }
        self.commit(&transactions, &mut report)?;
        self.memory = Some(memory);
        self.is_sure = true;
        self.delete_unused_chains();
        report.skipped = skipped(state.service_ports.values());
        Ok(report)
    }

    /// Commits one after the other.
    fn commit(
        &mut self,
        transactions: &[Transaction],
        report: &mut SyncReport,
    ) -> Result<(), TransportError> {
        for transaction in transactions.iter().filter(|transaction| !transaction.is_empty()) {
            // Printed only if somebody wants to read it.
            tracing::trace!(target: "backend_nft::v9", rules = %transaction, "Committing");
            let stats = self.transport.commit(transaction).inspect_err(|_| {
                // A part of it was done.
                if report.messages > 0 {
                    self.memory = None;
                }
            })?;
            report.commit += stats.commit;
            report.bytes += stats.bytes;
            report.messages += stats.operations;
        }
        Ok(())
    }

    /// Deletes the chains that a full sync found unused, somebody else's perhaps, if the kernel
    /// does that at once. If not, they wait until they are stale.
    fn delete_unused_chains(&mut self) {
        let Some(memory) = &mut self.memory else { return };
        let mut transaction = Transaction::new();
        for family in self.config.families() {
            for chain in memory.tables.of(family.into()).stale_chains.keys() {
                transaction.delete_chain(family, chain.clone());
            }
        }
        if transaction.is_empty() {
            return;
        }
        match self.transport.commit(&transaction) {
            Ok(_) => {
                for family in self.config.families() {
                    memory.tables.of_mut(family.into()).stale_chains.clear();
                }
            }
            Err(error) => tracing::debug!(%error, "Unused chains are deleted later"),
        }
    }

    /// Deletes chains that nothing has led to for a while; false if that fails. They do no harm, so
    /// that a failure is no reason to repeat the sync.
    fn delete_stale_chains(&mut self) -> bool {
        let Some(memory) = &mut self.memory else { return true };
        let mut transaction = Transaction::new();
        for family in self.config.families() {
            let stale = &mut memory.tables.of_mut(family.into()).stale_chains;
            stale.retain(|chain, since| {
                let is_due = since.elapsed() >= STALE_FOR;
                if is_due {
                    transaction.delete_chain(family, chain.clone());
                }
                !is_due
            });
        }
        if !transaction.is_empty()
            && let Err(error) = self.transport.commit(&transaction)
        {
            tracing::warn!(%error, "cannot delete unused chains; comparing everything at the next sync");
            self.memory = None;
            return false;
        }
        true
    }

    fn delete_table(&mut self, family: Family) -> Result<(), TransportError> {
        if self.transport.read(family, &[])?.is_some() {
            let mut transaction = Transaction::new();
            transaction.delete_table(family);
            self.transport.commit(&transaction)?;
        }
        Ok(())
    }

    fn error(message: &str, error: TransportError) -> ProxierError {
        ProxierError::Backend {
            mode: MODE,
            message: message.to_owned(),
            source: Some(Box::new(error)),
        }
    }
}

#[async_trait]
impl Proxier for NftProxier {
    fn mode(&self) -> &'static str {
        MODE
    }

    /// Blocks for as long as the kernel takes to commit.
    async fn sync(&mut self, state: &State, delta: &Delta) -> Result<SyncReport, ProxierError> {
        let cleanup_failed = !self.delete_stale_chains();
        let result = match delta.full {
            true => self.sync_full(state, delta),
            false => self.sync_changes(state, delta),
        };
        result.map(|report| SyncReport { cleanup_failed, ..report }).map_err(|error| {
            self.is_sure = false;
            Self::error("cannot program the tables", error)
        })
    }

    async fn cleanup(&mut self) -> Result<(), ProxierError> {
        self.memory = None;
        for family in Family::ALL {
            self.delete_table(family)
                .map_err(|error| Self::error("cannot delete the tables", error))?;
        }
        Ok(())
    }

    fn monitor(&self) -> Option<Box<dyn proxier::Monitor>> {
        // Others' commits cannot be told from those of a program that we run.
        let own = self.transport.port()?;
        match Listener::open(own, self.config.families().collect()) {
            Ok(listener) => Some(Box::new(Monitor::new(listener))),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "Changes of our tables by others are noticed only by the periodic full sync"
                );
                None
            }
        }
    }
}

/// The transaction that makes a kernel without our tables hold `state`, always in the same order.
pub fn render(config: &NftConfig, state: &State) -> Transaction {
    let (mut changes, _) = full::plan(config, state, &PerFamily::default());
    for changes in [&mut changes.v4, &mut changes.v6] {
        changes.sort_elements();
    }
    let ([_, transaction, _], _) = into_transactions(changes);
    transaction
}

/// The Service ports that are not served exactly as they ask, and why.
fn skipped<'a>(ports: impl Iterator<Item = &'a Arc<ResolvedServicePort>>) -> Vec<(String, String)> {
    ports.filter_map(|port| Some((port.id.to_string(), own::affinity_problem(port)?))).collect()
}

fn all_sets(family: Family) -> Vec<SetName> {
    FixedSet::ALL.iter().map(|set| set.definition(family).name.clone()).collect()
}

/// The changes of both families, in the order of [`Changes::split`].
fn into_transactions(changes: PerFamily<Changes>) -> ([Transaction; 3], SyncReport) {
    let mut transactions = [Transaction::new(), Transaction::new(), Transaction::new()];
    let mut report = SyncReport::default();
    for (family, changes) in [(Family::Ip, changes.v4), (Family::Ip6, changes.v6)] {
        let (added, removed) = changes.counts();
        report.added += added;
        report.removed += removed;
        for (part, transaction) in changes.split().into_iter().zip(&mut transactions) {
            part.append_to(family, transaction);
        }
    }
    (transactions, report)
}
