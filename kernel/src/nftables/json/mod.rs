//! The program `nft` with JSON, as another way to the kernel.

mod document;
mod probe;
mod read;
mod refusal;
mod rule;
mod run;
mod statement;

use std::{
    ffi::OsString,
    ops::ControlFlow,
    time::{Duration, Instant},
};

pub use self::document::Document;
use self::run::Program;
use crate::nftables::{
    ruleset::{ElementDump, SetDef, Table, TableDump, Transaction},
    transport::{CommitStats, Elements, NO_SUCH_OBJECT, Transport, TransportError},
};

/// The time that the program may run. It needs some ten seconds for a million elements.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Commits and reads by running `nft -j`, in the network namespace of the calling thread.
///
/// The transport needs an nft that takes maps with `typeof` and concatenated data in JSON, such as
/// 1.1.3. Such an nft drops the comments of sets. A transaction that it would not load from JSON
/// ([`Document::nft_loads`]) is sent as text, to the same effect. There are no generations: if
/// another program changes the ruleset between a read and a commit, the commit does not fail.
#[derive(Clone, Debug)]
pub struct JsonTransport {
    program: Program,
}

impl JsonTransport {
    /// Uses the program `nft` in the search path.
    ///
    /// # Errors
    ///
    /// [`TransportError::Run`] if there is no such program, [`TransportError::Unusable`] if it is
    /// too old.
    pub fn open() -> Result<Self, TransportError> {
        Self::with_program("nft")
    }

    /// Uses the program at this path; the errors are those of [`Self::open`].
    pub fn with_program(path: impl Into<OsString>) -> Result<Self, TransportError> {
        let program = Program { path: path.into(), timeout: TIMEOUT };
        probe::check(&program)?;
        Ok(Self { program })
    }
}

/// Reads a table from the output of `nft -j list table`. For tests.
///
/// # Errors
/// If the text is no such output.
#[cfg(feature = "testing")]
pub fn read_listing(table: &Table, listing: &[u8]) -> Result<TableDump, TransportError> {
    read::table(table, Elements::Include, listing)
}

impl JsonTransport {
    /// Returns what `nft` lists, or `None` if there is no such object.
    fn list(&self, arguments: &[&str]) -> Result<Option<Vec<u8>>, TransportError> {
        let output = self.program.run(arguments, b"")?;
        match output.success {
            true => Ok(Some(output.stdout)),
            false if output.stderr.contains(NO_SUCH_OBJECT) => Ok(None),
            false => Err(TransportError::Program {
                program: self.program.name(),
                message: output.stderr,
            }),
        }
    }
}

impl Transport for JsonTransport {
    fn commit(&mut self, transaction: &Transaction) -> Result<CommitStats, TransportError> {
        if transaction.is_empty() {
            return Ok(CommitStats::default());
        }
        let document = Document(transaction);
        // The program reads either format. It reads some rules as text alone.
        let (arguments, document) = match document.nft_loads() {
            true => {
                let json = serde_json::to_vec(&document)
                    .map_err(|error| TransportError::Malformed(error.to_string()))?;
                (&["-j", "-f", "-"][..], json)
            }
            false => (&["-f", "-"][..], transaction.to_string().into_bytes()),
        };
        let begun = Instant::now();
        if let Err(error) = self.program.succeed(arguments, &document) {
            return Err(refusal::find(&self.program, transaction).unwrap_or(error));
        }
        Ok(CommitStats {
            operations: transaction.operations().len(),
            bytes: document.len(),
            commit: begun.elapsed(),
            ..CommitStats::default()
        })
    }

    fn read(
        &mut self,
        table: &Table,
        elements: Elements,
    ) -> Result<Option<TableDump>, TransportError> {
        // Elements are listed with the table or not at all: a set that is listed alone shows the
        // state of another moment.
        let (family, name) = (table.family.as_str(), table.name.as_str());
        let listing = match elements {
            Elements::Include => self.list(&["-j", "list", "table", family, name])?,
            Elements::Omit => self.list(&["-j", "-t", "list", "table", family, name])?,
        };
        listing.map(|listing| read::table(table, elements, &listing)).transpose()
    }

    fn scan_elements(
        &mut self,
        table: &Table,
        set: &SetDef,
        visit: &mut dyn FnMut(ElementDump) -> ControlFlow<()>,
    ) -> Result<bool, TransportError> {
        let kind = if set.is_map() { "map" } else { "set" };
        let (family, in_table) = (table.family.as_str(), table.name.as_str());
        let listing = self.list(&["-j", "list", kind, family, in_table, set.name.as_str()])?;
        let Some(listing) = listing else { return Ok(false) };
        let mut dump = read::table(table, Elements::Include, &listing)?;
        let elements = dump.sets.remove(&set.name).and_then(|set| set.elements);
        let is_there = elements.is_some();
        let _ = elements.into_iter().flatten().try_for_each(visit);
        Ok(is_there)
    }
}
