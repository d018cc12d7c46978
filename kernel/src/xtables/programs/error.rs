//! Why a program failed.

use std::{io, time::Duration};

/// Why a program did not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// The program could not be run.
    #[error("cannot run {program}")]
    Run {
        /// The program.
        program: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The program did not end in time, and was killed. A change may have been made or not, each
    /// table's as a whole.
    #[error(
        "{program} was killed as it did not end within {limit:?} (arguments: {arguments}){}",
        colon(message)
    )]
    TimedOut {
        /// The program.
        program: String,
        /// The arguments, separated by spaces.
        arguments: String,
        /// The [limit](super::TimeLimits).
        limit: Duration,
        /// The program's message before, mostly empty.
        message: String,
    },
    /// Another program holds the xtables lock, and keeps it.
    #[error("{program}: another program holds the xtables lock: {message}")]
    Locked {
        /// The program.
        program: String,
        /// The program's message.
        message: String,
    },
    /// The program refused a line of its input, or several.
    #[error("{program} refuses line {line}, `{text}`: {message}")]
    Refused {
        /// The program.
        program: String,
        /// The number of the first line, from 1.
        line: usize,
        /// The first line.
        text: String,
        /// The other lines: iptables-nft names several of those that the kernel refuses, though not
        /// all.
        others: Vec<String>,
        /// The program's message.
        message: String,
    },
    /// The program failed otherwise.
    #[error("{program} fails with {status}: {message}")]
    Failed {
        /// The program.
        program: String,
        /// The exit status, or the signal that ended the program.
        status: String,
        /// The program's message.
        message: String,
    },
    /// The program cannot show a table, because of rules that it does not know.
    #[error("{program} cannot read the table {table}: it has rules that are not iptables'")]
    Incompatible {
        /// The program.
        program: String,
        /// The table.
        table: &'static str,
    },
}

impl ToolError {
    /// The lines of the input that the program is known to have refused.
    pub fn refused_lines(&self) -> impl Iterator<Item = &str> {
        let (first, others) = match self {
            Self::Refused { text, others, .. } => (Some(text), &others[..]),
            _ => (None, &[][..]),
        };
        first.into_iter().chain(others).map(String::as_str)
    }
}

/// A message behind a colon, if there is a message.
fn colon(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

/// The node lacks programs that could be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct MissingPrograms {
    /// The missing part, or the reason why an installed program cannot be used.
    pub reason: String,
}
