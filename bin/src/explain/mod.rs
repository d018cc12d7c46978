//! The commands `switchyard explain` and `switchyard snapshot`, and the local socket that both ask.
//!
//! `switchyard_core::explain` answers: here are the places that its facts come from. With
//! `--manifests`, they are those of a new tracker; with `--from`, of a file that
//! `switchyard snapshot` printed; otherwise of the running proxy, over its socket.

mod answer;
pub mod client;
pub mod feed;
pub mod flows;
pub mod history;
mod kernel;
pub mod names;
pub mod server;
pub mod service_flows;
pub mod snapshot;
pub mod sources;
pub mod top;

use std::{
    fs::File,
    io::{self, BufReader},
    path::{Path, PathBuf},
    process::ExitCode,
};

use switchyard_core::{
    explain::{Explanation, Picture, Question, QuestionError, explain},
    model::ServiceName,
    track::Tracker,
};
use switchyard_nft::OF_NAMED_PROXY;

use self::{client::ClientError, server::Request, snapshot::SnapshotError};
use crate::{
    Failure, backends,
    config::{
        self, Loaded,
        cli::{ExplainArguments, OutputFormat},
        flags::{Flags, table},
    },
    printable::{ended, print_json, print_lines},
    tracked::{self, TrackedError},
};

/// The exit status if there is no answer, as for what is unknown.
pub const NO_ANSWER: u8 = 4;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum ExplainError {
    #[error(transparent)]
    Question(#[from] QuestionError),
    #[error("--since is about one Service, as NAMESPACE/NAME, or all, of a running proxy")]
    Since,
    #[error(transparent)]
    Tracked(#[from] TrackedError),
    #[error("cannot open {0}")]
    Open(String, #[source] io::Error),
    #[error("cannot read {0}")]
    Snapshot(String, #[source] SnapshotError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cannot print the answer as JSON")]
    Json(#[from] serde_json::Error),
}

/// Answers the question, and returns the verdict as an exit status.
pub fn run(asked: &ExplainArguments, flags: &Flags) -> ExitCode {
    ended("Error", answer(asked, flags), NO_ANSWER)
}

/// Prints a snapshot of the running proxy.
pub fn take_snapshot(flags: &Flags) -> ExitCode {
    let copied = client::snapshot(&socket(flags), &mut io::stdout().lock());
    ended("Error", copied.map(|()| 0), NO_ANSWER)
}

/// The path of the socket, which a proxy with a name has beside that of the cluster's proxy. An
/// empty path is that of no socket.
pub fn socket(flags: &Flags) -> PathBuf {
    let default = table::named("local-socket").map_or("", |flag| flag.default);
    match (flags.written("local-socket"), flags.text("service-proxy-name")) {
        (Some(path), _) => path.into(),
        (None, Some(name)) => {
            Path::new(default).with_file_name(format!("{OF_NAMED_PROXY}{name}.sock"))
        }
        (None, None) => default.into(),
    }
}

fn answer(asked: &ExplainArguments, flags: &Flags) -> Result<u8, Failure> {
    let is_json = asked.format == OutputFormat::Json;
    if let Some(since) = asked.since {
        let service = match asked.question.as_str() {
            "" => None,
            text => match text.parse().map_err(ExplainError::from)? {
                Question::Service { service, port: None } => Some(service.to_string()),
                _ => return Err(ExplainError::Since.into()),
            },
        };
        if flags.text("manifests").is_some() {
            return Err(ExplainError::Since.into());
        }
        return ask_proxy(flags, &Request::Changes { seconds: since.as_secs(), service }, is_json);
    }
    let question: Question = asked.question.parse().map_err(ExplainError::from)?;
    if let Some(path) = &asked.from {
        return print(&explain(&question, &read_snapshot(path)?), asked.format);
    }
    let Some(directory) = flags.text("manifests").map(Path::new) else {
        return ask_proxy(flags, &Request::Explain(question.to_string()), is_json);
    };
    let loaded = config::load(flags, &backends::MODES)?;
    let mut answer = explain(&question, &read_manifests(directory, &loaded)?);
    if let Some(service) = service_of(&answer) {
        answer.set_names(&names::from_directory(directory, &service)?.endpoints);
    }
    print(&answer, asked.format)
}

/// Reads a file that `switchyard snapshot` has printed.
pub fn read_snapshot(path: &Path) -> Result<Picture, Failure> {
    let shown = path.display().to_string();
    let file = File::open(path).map_err(|error| ExplainError::Open(shown.clone(), error))?;
    let read = snapshot::read(BufReader::new(file));
    Ok(read.map_err(|error| ExplainError::Snapshot(shown, error))?.picture)
}

/// Reads manifests as the backend of these settings would. Problems go to standard error.
pub fn read_manifests(directory: &Path, loaded: &Loaded) -> Result<Tracker, Failure> {
    let all = backends::all(loaded, &Default::default(), &Default::default())?;
    let profile = backends::get(&all, loaded.settings.backend.mode)?.profile();
    let problems = &mut io::stderr().lock();
    let tracker = tracked::tracked(&loaded.settings, directory, &profile, problems);
    Ok(tracker.map_err(ExplainError::from)?)
}

/// The Service that an answer is about.
fn service_of(answer: &Explanation) -> Option<ServiceName> {
    let (namespace, name) = answer.service.as_deref()?.split_once('/')?;
    Some(ServiceName::new(namespace, name))
}

/// Prints the answer of the running proxy, and returns the exit status.
fn ask_proxy(flags: &Flags, request: &Request, is_json: bool) -> Result<u8, Failure> {
    let asked = client::ask(&socket(flags), request, is_json);
    let (status, text) = asked.map_err(ExplainError::from)?;
    match is_json {
        true => print_json(&text)?,
        false => print_lines(&text)?,
    }
    Ok(status)
}

fn print(explanation: &Explanation, format: OutputFormat) -> Result<u8, Failure> {
    match format {
        OutputFormat::Json => {
            print_json(&serde_json::to_string_pretty(explanation).map_err(ExplainError::from)?)?
        }
        OutputFormat::Text => print_lines(&explanation.to_string())?,
    }
    Ok(explanation.verdict.exit_status())
}

#[cfg(test)]
mod tests;
