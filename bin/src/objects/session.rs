//! A client's connection.

use std::{
    collections::HashSet,
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use switchyard_core::{
    objects::{Event, Kind, ObjectKey},
    runner::{Input, Query},
    track::{Problem, Reason},
};
use switchyard_sources::manifests::decode_object;
use tokio::{
    io::BufReader,
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{
        OwnedMutexGuard,
        broadcast::{
            Receiver,
            error::{RecvError, TryRecvError},
        },
        mpsc::Sender,
        oneshot,
    },
};

use super::{
    PROBLEMS,
    attention::Attention,
    ledger::{Ended, Full, Ledger},
    lines::{Answer, Lines, Request, VERSION},
};
use crate::{config::release, local_socket};

const OTHER_KIND: &str = "objects of this kind are not read";

/// Why a session ends, other than by its client.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error("the connection failed")]
    Read(#[from] io::Error),
    /// The client took no answers. All that it sent was read.
    #[error("the client took no answers")]
    Answer(#[source] io::Error),
    #[error("the engine has ended")]
    Ended,
    #[error("another client has taken the place of this one, which was silent")]
    Replaced,
}

/// Notes the end of a connection, also of one whose task panics.
struct Connected(Arc<Attention>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.is_connected.store(false, Relaxed);
    }
}

/// A connection, whose client is the only one.
pub(super) struct Session {
    lines: Lines<BufReader<OwnedReadHalf>>,
    client: Client,
    ledger: OwnedMutexGuard<Ledger>,
    attention: Arc<Attention>,
    engine: Sender<Input>,
    problems: Receiver<Problem>,
    /// The problems that were sent, until all that were known have been.
    sent: Option<HashSet<Problem>>,
}

impl Session {
    pub(super) fn new(
        stream: UnixStream,
        (ledger, attention): (OwnedMutexGuard<Ledger>, Arc<Attention>),
        engine: Sender<Input>,
        problems: Receiver<Problem>,
    ) -> Self {
        let (reading, writing) = stream.into_split();
        let lines = Lines::new(BufReader::new(reading));
        let client = Client { writing, line: 0, failure: None };
        attention.is_connected.store(true, Relaxed);
        Self { lines, client, ledger, attention, engine, problems, sent: Some(HashSet::new()) }
    }

    /// Reads until the client closes the connection.
    pub(super) async fn run(self, node_name: &str) -> Result<(), SessionError> {
        let _connected = Connected(Arc::clone(&self.attention));
        self.converse(node_name).await
    }

    async fn converse(mut self, node_name: &str) -> Result<(), SessionError> {
        self.ledger.break_list();
        let hello = Answer::Hello { version: VERSION, program: release::OURS, node: node_name };
        self.client.send(&hello).await?;
        loop {
            self.attention.waits();
            let line = tokio::select! {
                biased;
                () = self.attention.replaced() => {
                    let message = SessionError::Replaced.to_string();
                    self.client.send(&Answer::error(None, &message)).await?;
                    return Err(SessionError::Replaced);
                }
                problem = self.problems.recv() => {
                    if let (Some(sent), Ok(problem)) = (&mut self.sent, &problem)
                        && sent.len() < PROBLEMS
                    {
                        sent.insert(problem.clone());
                    }
                    self.client.problem(problem).await?;
                    continue;
                }
                line = self.lines.next() => line?,
            };
            let Some(line) = line else {
                return self
                    .client
                    .failure
                    .map_or(Ok(()), |error| Err(SessionError::Answer(error)));
            };
            self.attention.hears();
            self.client.line += 1;
            let request = match line.map(serde_json::from_slice::<Request<'_>>) {
                Some(Ok(request)) => request,
                Some(Err(error)) => {
                    self.ledger.add_unknown();
                    self.client.refuse(&format!("not a request: {error}")).await?;
                    continue;
                }
                None => {
                    self.ledger.add_unknown();
                    self.client.refuse("the line is too long").await?;
                    continue;
                }
            };
            let (ledger, length) = (&mut self.ledger, line.map_or(0, <[u8]>::len));
            let client = &mut self.client;
            let engine = &self.engine;
            match request {
                Request::List => ledger.begin_list(),
                Request::Synced => {
                    let Some(Ended { gone, is_first, is_whole }) = ledger.end_list() else {
                        client.refuse("no list has begun").await?;
                        continue;
                    };
                    for key in gone {
                        send(engine, Event::Delete(key)).await?;
                    }
                    for kind in Kind::ALL.into_iter().filter(|_| is_first) {
                        send(engine, Event::Listed(kind)).await?;
                    }
                    let objects = ledger.len();
                    self.attention.ends_list();
                    self.caught_up().await?;
                    self.client.send(&Answer::Synced { objects, is_whole }).await?;
                }
                Request::Apply(object) => {
                    if let Some(event) = client.decode(ledger, object.get(), length, None).await? {
                        send(engine, event).await?;
                    }
                }
                Request::Node(object) => {
                    let node = Some(node_name);
                    if let Some(event) = client.decode(ledger, object.get(), length, node).await? {
                        send(engine, event).await?;
                    }
                }
                Request::Delete(name) => match name.key() {
                    Some(key) => {
                        ledger.remove(&key);
                        send(engine, Event::Delete(key)).await?;
                    }
                    None => client.refuse(OTHER_KIND).await?,
                },
                Request::Confirm(number) => {
                    self.caught_up().await?;
                    self.client.send(&Answer::Confirmed(number)).await?;
                }
            }
        }
    }

    /// Waits until the engine has taken everything, and sends the problems of that; the first time,
    /// those of everything that there is.
    async fn caught_up(&mut self) -> Result<(), SessionError> {
        let (done, is_done) = oneshot::channel();
        let sent = self.sent.take();
        let query = Query::new(move |known| {
            let unsent = sent.into_iter().flat_map(|sent| {
                known.problems().filter(move |it| !sent.contains(it)).take(PROBLEMS + 1)
            });
            // The client may have gone.
            let _ = done.send(unsent.cloned().collect());
        });
        self.engine
            .send(Input::Query(query.after_lists()))
            .await
            .map_err(|_| SessionError::Ended)?;
        let unsent: HashSet<Problem> = is_done.await.map_err(|_| SessionError::Ended)?;
        for problem in unsent.iter().take(PROBLEMS) {
            self.client.problem(Ok(problem.clone())).await?;
        }
        if unsent.len() > PROBLEMS {
            let message = format!("the problems beyond {PROBLEMS} are in the log alone");
            self.client.send(&Answer::error(None, &message)).await?;
        }
        loop {
            let problem = match self.problems.try_recv() {
                Ok(problem) if unsent.contains(&problem) => continue,
                Ok(problem) => Ok(problem),
                Err(TryRecvError::Lagged(count)) => Err(RecvError::Lagged(count)),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return Ok(()),
            };
            self.client.problem(problem).await?;
        }
    }
}

async fn send(engine: &Sender<Input>, event: Event) -> Result<(), SessionError> {
    engine.send(event.into()).await.map_err(|_| SessionError::Ended)
}

/// The side that answers go to.
struct Client {
    writing: OwnedWriteHalf,
    /// The number of the line that is answered.
    line: u64,
    /// The reason why nothing is answered any more.
    failure: Option<io::Error>,
}

impl Client {
    /// Sends an answer. A client that sends, closes and is gone is read to its end.
    async fn send(&mut self, answer: &Answer<'_>) -> Result<(), SessionError> {
        if self.failure.is_none() {
            self.failure = local_socket::send(&mut self.writing, answer).await.err();
        }
        Ok(())
    }

    async fn refuse(&mut self, message: &str) -> Result<(), SessionError> {
        self.send(&Answer::error(Some(self.line), message)).await
    }

    /// Returns the change that an object is; `None` if it was refused. With the name of a `node`,
    /// the object must be that Node.
    async fn decode(
        &mut self,
        ledger: &mut Ledger,
        object: &str,
        length: usize,
        node: Option<&str>,
    ) -> Result<Option<Event>, SessionError> {
        let line = Some(self.line);
        let event = match decode_object(object) {
            Ok(Some(event)) => event,
            Ok(None) => {
                self.refuse(OTHER_KIND).await?;
                return Ok(None);
            }
            Err(problem) => {
                let (field, message) = (problem.field.as_str(), problem.message.as_str());
                let object = problem.object.as_ref().map(ToString::to_string);
                self.send(&Answer::Error { line, object, field, message }).await?;
                let Some(object) = problem.object else {
                    ledger.add_unknown();
                    return Ok(None);
                };
                let (field, message) = (problem.field, problem.message);
                Event::Malformed { object, field, message }
            }
        };
        let key = match &event {
            Event::Apply(object) => object.key(),
            Event::Malformed { object, .. } | Event::Delete(object) => object.clone(),
            _ => return Ok(None),
        };
        let refuse =
            |message| Answer::Error { line, object: Some(key.to_string()), field: "", message };
        if node.is_some_and(|name| !is_node(&key, name)) {
            self.send(&refuse("this is not the Node of the proxy")).await?;
            return Ok(None);
        }
        if let Event::Delete(key) = &event {
            ledger.remove(key);
        } else if let Err(Full) = ledger.add(key.clone(), length) {
            // A list without it must not take it away.
            ledger.add_unknown();
            self.send(&refuse("there are too many objects, or too large ones")).await?;
            return Ok(None);
        }
        Ok(Some(event))
    }

    async fn problem(&mut self, problem: Result<Problem, RecvError>) -> Result<(), SessionError> {
        match problem {
            // The client was sent an error with the number of the line.
            Ok(Problem { reason: Reason::Malformed, .. }) => Ok(()),
            Ok(problem) => self.send(&Answer::Problem((&problem).into())).await,
            Err(RecvError::Lagged(count)) => {
                let message = format!("{count} problems are in the log alone");
                self.send(&Answer::error(None, &message)).await
            }
            // The sender is an observer of the engine.
            Err(RecvError::Closed) => Err(SessionError::Ended),
        }
    }
}

fn is_node(key: &ObjectKey, name: &str) -> bool {
    key.kind == Kind::Node && key.name == name
}
