//! The socket for objects: one client feeds the proxy Services and EndpointSlices as lines of JSON.
//!
//! ```text
//! client ──► session ──► engine
//!    ▲          │          │
//!    └──────────┴◄─────────┘ problems
//! ```
//!
//! A client is read only as fast as the engine takes what it sends. What was applied stays when the
//! client goes; a later list of the same or of another client replaces it ([`ledger`]). A client that
//! is silent has the place until another one asks for it: a process that hangs keeps no other out.

mod attention;
mod ledger;
mod lines;
mod session;

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use switchyard_core::{
    error::ErrorChain,
    runner::{EngineEvent, Input, Observer},
    track::Problem,
};
use tokio::{
    net::UnixListener,
    sync::{
        Mutex,
        broadcast::{self, Sender as Broadcast},
        mpsc::Sender,
    },
    task::spawn_blocking,
    time::{Instant, interval, sleep, timeout},
};

pub use self::attention::{ClientHealth, ClientState};
use self::{ledger::Ledger, lines::Answer, session::Session};
use crate::local_socket;

/// The pause after a failure to accept, such as for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// The time between two looks whether the socket is there.
const LOOK: Duration = Duration::from_secs(5);
/// The silence after which another client may take the place.
const SILENCE: Duration = Duration::from_secs(60);
/// The longest wait for the end of a client whose place is taken.
const FAREWELL: Duration = Duration::from_secs(10);
/// The most problems that wait for the client.
const PROBLEMS: usize = 1024;

/// The socket cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the socket {} of --objects-socket", .0.display())]
pub struct ObjectsError(PathBuf, #[source] io::Error);

/// Sends the problems of objects to the client.
#[derive(Clone, Debug)]
pub struct Problems(Broadcast<Problem>);

impl Default for Problems {
    fn default() -> Self {
        Self(broadcast::channel(PROBLEMS).0)
    }
}

impl Observer for Problems {
    fn on_event(&self, event: &EngineEvent<'_>) {
        if let EngineEvent::Rejected(problem) = event
            && self.0.receiver_count() > 0
        {
            // The client may have gone.
            let _ = self.0.send(Problem::clone(problem));
        }
    }
}

/// A link to the client, besides the objects.
#[derive(Clone, Debug, Default)]
pub struct ClientLink {
    /// The problems that the client is sent.
    pub problems: Problems,
    /// The state of the client.
    pub health: ClientHealth,
}

/// Opens the socket, which may wait for another process. Returns it with its identity in the file
/// system.
async fn open(path: &Path) -> io::Result<(UnixListener, Option<(u64, u64)>)> {
    let path = path.to_owned();
    let open = move || {
        let listener = local_socket::open(&path)?.ok_or(rustix::io::Errno::NOENT)?;
        Ok::<_, io::Error>((listener, identity(&path)))
    };
    let (listener, identity) = spawn_blocking(open).await.map_err(io::Error::other)??;
    Ok((UnixListener::from_std(listener)?, identity))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Serves one client at a time, until the engine has ended. A socket that another program removes
/// is opened again.
pub async fn run(
    path: PathBuf,
    node_name: &str,
    engine: Sender<Input>,
    ClientLink { problems, health }: ClientLink,
) -> Result<(), ObjectsError> {
    let opened = open(&path).await.map_err(|error| ObjectsError(path.clone(), error));
    let (mut listener, mut own) = opened?;
    let mut looks = interval(LOOK);
    let mut is_lost = false;
    // The socket of another program, and the last try, which that program takes for a client.
    let mut foreign = None::<(_, Instant)>;
    tracing::info!(path = %path.display(), "Waiting for a client with objects");
    // Whoever holds it is the client.
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let mut attention = health.begins();
    loop {
        let accepted = tokio::select! {
            () = engine.closed() => return Ok(()),
            accepted = listener.accept() => accepted,
            _ = looks.tick() => {
                let found = identity(&path);
                let is_tried = |(tried, at): (_, Instant)| tried == found && at.elapsed() < SILENCE;
                // Without an identity, the socket was gone before it was looked at.
                if found.is_some() && (found == own || foreign.is_some_and(is_tried)) {
                    continue;
                }
                foreign = Some((found, Instant::now()));
                match open(&path).await {
                    Ok(opened) => {
                        tracing::warn!(path = %path.display(), "Socket for objects was gone; opened it again");
                        ((listener, own), is_lost) = (opened, false);
                    }
                    Err(error) if !is_lost => {
                        let (path, err) = (path.display(), ErrorChain(&error));
                        tracing::error!(%path, %err, "Socket for objects is gone; trying again");
                        is_lost = true;
                    }
                    Err(_) => {}
                }
                continue;
            }
        };
        let mut stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(err = %ErrorChain(&error), "Failed to accept a client with objects");
                sleep(PAUSE).await;
                continue;
            }
        };
        let free = match Arc::clone(&ledger).try_lock_owned() {
            Err(_) if attention.silence() >= SILENCE => {
                attention.take_place();
                timeout(FAREWELL, Arc::clone(&ledger).lock_owned()).await.ok()
            }
            free => free.ok(),
        };
        let Some(ledger) = free else {
            let answer = Answer::error(None, "another client is connected; try again later");
            // Nothing waits in the new stream, so this returns at once.
            let _ = local_socket::send(&mut stream, &answer).await;
            continue;
        };
        attention = health.begins();
        let session = Session::new(
            stream,
            (ledger, Arc::clone(&attention)),
            engine.clone(),
            problems.0.subscribe(),
        );
        let node_name = node_name.to_owned();
        tokio::spawn(async move {
            tracing::info!("Client with objects connected");
            match session.run(&node_name).await {
                Ok(()) => tracing::info!("Client with objects gone; its objects stay"),
                Err(error) => tracing::warn!(
                    err = %ErrorChain(&error), "Client with objects failed; its objects stay"
                ),
            }
        });
    }
}

#[cfg(test)]
mod tests;
