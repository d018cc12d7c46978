//! The local socket: a line of JSON with a request, and lines with the answer.
//!
//! A client can only read. Few connections are answered at a time, each for a limited time, and a
//! snapshot is read from the engine in small parts, so that a client that hangs, or asks much,
//! keeps no sync waiting.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::UnixStream as StdStream,
    },
    path::{Path, PathBuf},
    process,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use switchyard_core::{
    error::ErrorChain,
    explain::{Known, Question, explain},
    model::ServiceName,
    runner::{Input, Query},
    track::Tracker,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc::Sender, oneshot},
    time::{sleep, timeout},
};

use super::{
    history::History,
    snapshot::{Line, VERSION},
};
use crate::config::release;

/// The longest wait for the engine, which a sync may keep busy.
pub const WAIT: Duration = Duration::from_secs(10);
/// The longest wait for a request, and for a client that takes nothing of an answer.
const CLIENT: Duration = Duration::from_secs(5);
/// The longest request, in bytes.
const LONGEST: u64 = 4096;
/// The most connections that are answered at a time.
const MOST: usize = 4;
/// The Services of a snapshot that are read at a time.
const PART: usize = 16;
/// The pause after a failure to accept, such as for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// The answer to a question.
    Explain(String),
    /// Everything that is known.
    Snapshot,
}

/// Why a request is not answered.
#[derive(Debug, thiserror::Error)]
enum ServerError {
    /// The client is slow, or gone.
    #[error("the client failed")]
    Client(#[from] io::Error),
    /// The engine is busy.
    #[error("the proxy was busy for {WAIT:?}")]
    Busy,
    /// The engine has ended.
    #[error("the engine has ended")]
    Ended,
}

/// Opens the socket, for the program's user alone. Returns `None` if the path is empty, or its
/// directory does not exist.
///
/// # Errors
/// If another process answers there, or the path belongs to something else than a socket.
pub fn open(path: impl AsRef<Path>) -> io::Result<Option<std::os::unix::net::UnixListener>> {
    let path = path.as_ref();
    if path.as_os_str().is_empty() || !path.parent().is_some_and(Path::is_dir) {
        return Ok(None);
    }
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is no socket"));
        }
        Ok(_) => match StdStream::connect(path) {
            Ok(_) => {
                let text = "another process answers there";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            // It may be a live one of another user.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => {}
        },
        Err(_) => {}
    }
    // The socket appears under its name with its final mode, in the place of one that a dead
    // process left.
    let unnamed = PathBuf::from(format!("{}.{}", path.display(), process::id()));
    let _ = fs::remove_file(&unnamed);
    let listener = std::os::unix::net::UnixListener::bind(&unnamed)?;
    fs::set_permissions(&unnamed, fs::Permissions::from_mode(0o600))?;
    fs::rename(&unnamed, path)?;
    listener.set_nonblocking(true)?;
    Ok(Some(listener))
}

/// Answers requests for ever.
pub async fn serve(listener: UnixListener, engine: Sender<Input>, history: Arc<History>) {
    let slots = Arc::new(Semaphore::new(MOST));
    loop {
        // The semaphore is never closed.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (engine, history) = (engine.clone(), Arc::clone(&history));
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, &engine, &history).await {
                        tracing::debug!(err = %ErrorChain(&error), "Request at the local socket failed");
                    }
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::debug!(err = %ErrorChain(&error), "Failed to accept at the local socket");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn converse(
    stream: UnixStream,
    engine: &Sender<Input>,
    history: &History,
) -> Result<(), ServerError> {
    let (reading, mut writing) = stream.into_split();
    let mut line = String::new();
    let mut reading = BufReader::new(reading.take(LONGEST));
    let read = timeout(CLIENT, reading.read_line(&mut line)).await;
    read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let refused = match serde_json::from_str(&line) {
        Ok(Request::Snapshot) => return snapshot(&mut writing, engine, history).await,
        Ok(Request::Explain(text)) => match text.parse::<Question>() {
            Ok(question) => match ask(engine, move |known| explain(&question, known)).await {
                Ok(answer) => {
                    let (status, text) = (answer.verdict.exit_status(), answer.to_string());
                    let whole = json!({"status": status, "text": text, "answer": answer});
                    return Ok(send(&mut writing, &whole).await?);
                }
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        },
        Err(error) => format!("not a request: {error}"),
    };
    Ok(send(&mut writing, &json!({"error": refused})).await?)
}

/// Sends all that is known, a few Services at a time.
async fn snapshot(
    to: &mut (impl AsyncWriteExt + Unpin),
    engine: &Sender<Input>,
    history: &History,
) -> Result<(), ServerError> {
    let names = |known: &Tracker| known.names().cloned().collect::<Vec<ServiceName>>();
    let (node, mut names) = ask(engine, move |known| (Known::node(known), names(known))).await?;
    names.sort_unstable();
    let (program, taken) = (release::OURS.to_owned(), Timestamp::now().to_string());
    send(to, &Line::Snapshot { version: VERSION, program, taken }).await?;
    send(to, &Line::Node(Box::new(node))).await?;
    let mut count = 0;
    for part in names.chunks(PART) {
        let part = part.to_vec();
        let read = move |known: &Tracker| {
            part.iter().filter_map(|name| Known::service(known, name)).collect::<Vec<_>>()
        };
        for service in ask(engine, read).await? {
            send(to, &Line::Service(Box::new(service))).await?;
            count += 1;
        }
    }
    for sync in history.syncs() {
        send(to, &Line::Sync(Box::new(sync))).await?;
    }
    Ok(send(to, &Line::End { services: count }).await?)
}

/// Reads the tracker on the engine's thread.
async fn ask<T: Send + 'static>(
    engine: &Sender<Input>,
    read: impl FnOnce(&Tracker) -> T + Send + 'static,
) -> Result<T, ServerError> {
    let (answer, answered) = oneshot::channel();
    // The client may have gone.
    let query = Query::new(move |known| drop(answer.send(read(known))));
    let asking = async {
        engine.send(Input::Query(query)).await.map_err(|_| ServerError::Ended)?;
        answered.await.map_err(|_| ServerError::Ended)
    };
    timeout(WAIT, asking).await.map_err(|_| ServerError::Busy)?
}

/// Sends a line. A client that takes nothing for a time has failed.
pub async fn send(to: &mut (impl AsyncWriteExt + Unpin), line: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(line)?;
    line.push(b'\n');
    let mut rest = &line[..];
    while !rest.is_empty() {
        let written = timeout(CLIENT, to.write(rest)).await;
        let written = written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        rest = &rest[written..];
    }
    Ok(())
}
