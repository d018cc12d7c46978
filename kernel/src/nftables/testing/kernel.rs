//! A transport to a [`Ruleset`].

use std::{
    collections::BTreeMap,
    mem,
    ops::ControlFlow,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::model::Ruleset;
use crate::nftables::{
    ruleset::{ElementDump, SetDef, Table, TableDump, Transaction},
    transport::{CommitStats, Elements, Transport, TransportError},
};

/// A kernel in memory. Clones are the same kernel: each is a transport of the one program whose
/// commits are not another program's.
#[derive(Clone, Debug, Default)]
pub struct Kernel(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    present: Ruleset,
    /// The states that commits have changed since [`Kernel::take_history`].
    history: Vec<Ruleset>,
    generation: u32,
    /// The newest generations in which other programs changed tables.
    changed: BTreeMap<Table, u32>,
}

impl Kernel {
    /// The present tables.
    pub fn ruleset(&self) -> Ruleset {
        self.lock().present.clone()
    }

    /// Returns the states since the last call: the one at that time, and one after each commit.
    pub fn take_history(&self) -> Vec<Ruleset> {
        let mut state = self.lock();
        let mut history = mem::take(&mut state.history);
        history.push(state.present.clone());
        history
    }

    /// Changes tables without a commit, as packets and time do.
    pub fn alter(&self, change: impl FnOnce(&mut Ruleset)) {
        change(&mut self.lock().present);
    }

    /// Commits for another program.
    ///
    /// # Errors
    /// Those of [`Ruleset::commit`].
    pub fn commit_of_other(&self, transaction: &Transaction) -> Result<(), TransportError> {
        let mut state = self.lock();
        state.commit(transaction)?;
        let generation = state.generation;
        let tables = transaction.operations().iter().map(|operation| operation.table.clone());
        state.changed.extend(tables.map(|table| (table, generation)));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A state is whole after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn commit(&mut self, transaction: &Transaction) -> Result<(), TransportError> {
        let before = self.present.clone();
        self.present.commit(transaction)?;
        self.history.push(before);
        self.generation += 1;
        Ok(())
    }
}

impl Transport for Kernel {
    fn commit(&mut self, transaction: &Transaction) -> Result<CommitStats, TransportError> {
        if transaction.is_empty() {
            return Ok(CommitStats::default());
        }
        let mut state = self.lock();
        if let Some(expected) = transaction.generation()
            && state.changed.values().any(|changed| *changed > expected)
        {
            return Err(TransportError::Conflict);
        }
        state.commit(transaction)?;
        let operations = transaction.operations().len();
        Ok(CommitStats { operations, ..CommitStats::default() })
    }

    fn read(
        &mut self,
        table: &Table,
        elements: Elements,
    ) -> Result<Option<TableDump>, TransportError> {
        let state = self.lock();
        Ok(state.present.read(table, elements, state.generation))
    }

    fn scan_elements(
        &mut self,
        table: &Table,
        set: &SetDef,
        visit: &mut dyn FnMut(ElementDump) -> ControlFlow<()>,
    ) -> Result<bool, TransportError> {
        // Others may ask while the elements are shown.
        let state = self.lock().present.clone();
        let elements = state.elements(table, &set.name);
        let is_there = elements.is_some();
        let _ = elements.into_iter().flatten().cloned().try_for_each(visit);
        Ok(is_there)
    }

    /// A number that no socket has.
    fn port(&self) -> Option<u32> {
        Some(u32::MAX)
    }
}
