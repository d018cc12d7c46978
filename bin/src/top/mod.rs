//! The command `switchyard top`: the Services of the running proxy with their traffic, on a
//! terminal or printed once.
//!
//! ```text
//! running proxy: engine, connection tracking, history ──► explain::top
//!                                                            │ local socket
//! terminal ◄── draw ◄── view ◄───────────────────────────────┘
//!        └── keys ──────►┘
//! ```

mod draw;
mod minute;
mod terminal;
mod view;

use std::{
    io::{self, IsTerminal, Write},
    path::Path,
    process::ExitCode,
    thread,
    time::Duration,
};

use signal_hook::low_level;

use crate::{
    Failure,
    config::{
        cli::{OutputFormat, TopArguments},
        flags::Flags,
    },
    explain::{self, NO_ANSWER, client, server::Request, top::Top},
    printable::{self, print_json},
};

/// The time that rates are measured over if the answer is printed once.
const ONCE: Duration = Duration::from_secs(1);
/// The most times that this is waited for.
const MOST_WAITS: usize = 60;

/// Why nothing is shown.
#[derive(Debug, thiserror::Error)]
enum TopError {
    #[error("standard input and output are not a terminal: --once prints the Services")]
    NoTerminal,
    /// The terminal cannot be used, or signals not handled.
    #[error("cannot write")]
    Io(#[from] io::Error),
    /// The thread that asks the proxy has ended, which happens only in a panic.
    #[error("nothing asks the proxy any more")]
    Asking,
}

/// Shows or prints the Services, and returns the exit status.
pub fn run(asked: TopArguments, flags: &Flags) -> ExitCode {
    let path = explain::socket(flags);
    let ended = if asked.once || asked.format == OutputFormat::Json {
        print(&path, asked.format).map(|()| None)
    } else if io::stdin().is_terminal() && io::stdout().is_terminal() {
        terminal::show(path).map_err(Failure::from)
    } else {
        Err(TopError::NoTerminal.into())
    };
    if let Ok(Some(signal)) = ended {
        // The terminal is as it was: the signal may end the program as it does others.
        let _ = low_level::emulate_default_handler(signal);
        return ExitCode::FAILURE;
    }
    printable::ended("Error", ended.map(|_| 0), NO_ANSWER)
}

fn print(path: &Path, format: OutputFormat) -> Result<(), Failure> {
    let mut top: Top = client::value(path, &Request::Top)?;
    for _ in 0..MOST_WAITS {
        // The proxy does not walk over a large table each second.
        if !top.waits_for_rates() {
            break;
        }
        thread::sleep(ONCE);
        top = client::value(path, &Request::Top)?;
    }
    match format {
        OutputFormat::Text => io::stdout().write_all(draw::plain(&top).as_bytes())?,
        OutputFormat::Json => print_json(&serde_json::to_string_pretty(&top)?)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests;
