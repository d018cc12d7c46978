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
//! is silent has the place until another one asks for it: a process that hangs keeps nobody out.

mod attention;
mod ledger;
mod lines;
mod session;

use std::{io, path::PathBuf, sync::Arc, time::Duration};

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
    time::{sleep, timeout},
};

use self::{attention::Attention, ledger::Ledger, lines::Answer, session::Session};
use crate::local_socket;

/// The pause after a failure to accept, such as for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// The silence after which another client may take the place.
const SILENCE: Duration = Duration::from_secs(60);
/// The longest wait for the end of a client whose place is taken.
const FAREWELL: Duration = Duration::from_secs(10);
/// The most problems that wait for the client.
const PROBLEMS: usize = 1024;

/// Why the socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// The socket cannot be opened.
    #[error("cannot open the socket {} of --objects-socket", .0.display())]
    Open(PathBuf, #[source] io::Error),
}

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

/// Serves one client at a time, until the engine has ended.
pub async fn run(
    path: PathBuf,
    node_name: &str,
    engine: Sender<Input>,
    problems: Problems,
) -> Result<(), ObjectsError> {
    let opened = local_socket::open(&path).and_then(|listener| {
        UnixListener::from_std(listener.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?)
    });
    let listener = opened.map_err(|error| ObjectsError::Open(path.clone(), error))?;
    tracing::info!(path = %path.display(), "Waiting for a client with objects");
    // Whoever holds it is the client.
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let mut attention = Arc::<Attention>::default();
    loop {
        let accepted = tokio::select! {
            () = engine.closed() => return Ok(()),
            accepted = listener.accept() => accepted,
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
        attention = Arc::default();
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
