//! Asking the running proxy over its socket.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    server::Request,
    snapshot::{self, Snapshot, SnapshotError},
    sources::WAIT,
};
use crate::{Failure, printable::json};

/// The longest wait for a part of an answer: longer than the server waits for the engine.
const PATIENCE: Duration = WAIT.saturating_mul(2);

/// Why the proxy does not answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "cannot reach a running proxy at {0}; run this as its user, or name its --local-socket \
         (explain, trace and verify can do without one: --manifests DIR or --from FILE)"
    )]
    Connect(PathBuf, #[source] io::Error),
    #[error("the connection to the proxy failed")]
    Io(#[from] io::Error),
    #[error("the answer of the proxy cannot be read")]
    Json(#[from] serde_json::Error),
    #[error("the proxy does not answer: {0}")]
    Refused(String),
    /// The snapshot cannot be read, or ends too early.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// The answer to a question.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    status: u8,
    #[serde(default)]
    text: String,
    #[serde(default)]
    answer: Value,
}

/// Returns the exit status and what is to be printed.
pub fn ask(path: &Path, request: &Request, is_json: bool) -> Result<(u8, String), ClientError> {
    match answer(path, request)? {
        Answer { status, answer, .. } if is_json => {
            Ok((status, serde_json::to_string_pretty(&answer)? + "\n"))
        }
        Answer { status, text, .. } => Ok((status, text)),
    }
}

/// Returns the answer as a value.
pub fn value<T: DeserializeOwned>(path: &Path, request: &Request) -> Result<T, ClientError> {
    Ok(serde_json::from_value(answer(path, request)?.answer)?)
}

fn answer(path: &Path, request: &Request) -> Result<Answer, ClientError> {
    let mut stream = send(path, request)?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    let answer: Answer = serde_json::from_slice(&text)?;
    match answer {
        Answer { error: Some(error), .. } => Err(ClientError::Refused(error)),
        answer => Ok(answer),
    }
}

/// Copies a snapshot to `output`.
pub fn snapshot(path: &Path, output: &mut dyn Write) -> Result<(), Failure> {
    let mut lines = BufReader::new(send(path, &Request::Snapshot)?);
    let (mut line, mut is_whole) = (String::new(), false);
    while lines.read_line(&mut line).map_err(ClientError::Io)? > 0 {
        output.write_all(json(&line).as_bytes())?;
        is_whole = line.starts_with("{\"end\"") && line.ends_with('\n');
        line.clear();
    }
    output.flush()?;
    if is_whole { Ok(()) } else { Err(ClientError::from(SnapshotError::Incomplete).into()) }
}

/// Returns the node and all Services.
pub fn services(path: &Path) -> Result<Snapshot, ClientError> {
    Ok(snapshot::read(BufReader::new(send(path, &Request::Services)?))?)
}

fn send(path: &Path, request: &Request) -> Result<UnixStream, ClientError> {
    let connected = UnixStream::connect(path);
    let mut stream = connected.map_err(|error| ClientError::Connect(path.to_owned(), error))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let line = serde_json::to_string(request)? + "\n";
    stream.write_all(line.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    Ok(stream)
}
