//! libnftables' JSON: what `nft -j` reads and prints, as another way to the kernel.

mod document;
mod probe;
mod read;
mod rule;
mod run;
mod statement;

use std::{
    ffi::OsString,
    time::{Duration, Instant},
};

pub use self::document::Document;
use self::run::Program;
use crate::{
    ruleset::{Family, SetName, TABLE, TableDump, Transaction},
    transport::{CommitStats, Transport, TransportError},
};

/// How long the program may take: it needs some ten seconds for a million elements.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Commits and reads by running `nft -j`, in the network namespace of the calling thread.
///
/// It needs an nft that takes maps with `typeof` and concatenated data in JSON, such as 1.1.3. Such
/// an nft drops the comments of sets. It knows no generations: what others change between reading
/// and committing is not noticed.
#[derive(Clone, Debug)]
pub struct JsonTransport {
    program: Program,
}

impl JsonTransport {
    /// Uses the `nft` in the search path, if it is able to.
    pub fn open() -> Result<Self, TransportError> {
        Self::with_program("nft")
    }

    /// Uses another program, if it is able to.
    pub fn with_program(path: impl Into<OsString>) -> Result<Self, TransportError> {
        let program = Program { path: path.into(), timeout: TIMEOUT };
        probe::check(&program)?;
        Ok(Self { program })
    }
}

impl Transport for JsonTransport {
    fn commit(&mut self, transaction: &Transaction) -> Result<CommitStats, TransportError> {
        let mut stats = CommitStats::of(transaction);
        if transaction.is_empty() {
            return Ok(stats);
        }
        let begun = Instant::now();
        let document = serde_json::to_vec(&Document(transaction))
            .map_err(|error| TransportError::Malformed(error.to_string()))?;
        stats.bytes = document.len();
        stats.encode = begun.elapsed();
        let begun = Instant::now();
        self.program.succeed(&["-j", "-f", "-"], &document)?;
        stats.commit = begun.elapsed();
        Ok(stats)
    }

    fn read(
        &mut self,
        family: Family,
        elements_of: &[SetName],
    ) -> Result<Option<TableDump>, TransportError> {
        // Elements come with the table or not at all: nft reads a set alone from another moment.
        let list = ["-j", "list", "table", family.as_str(), TABLE];
        let terse = ["-j", "-t", "list", "table", family.as_str(), TABLE];
        let arguments = if elements_of.is_empty() { &terse[..] } else { &list[..] };
        let output = self.program.run(arguments, b"")?;
        if !output.success {
            return match output.stderr.contains("No such file or directory") {
                true => Ok(None),
                false => Err(TransportError::Program {
                    program: self.program.name(),
                    message: output.stderr,
                }),
            };
        }
        read::table(family, elements_of, &output.stdout).map(Some)
    }

    fn name(&self) -> &'static str {
        "json"
    }
}
