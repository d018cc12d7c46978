//! Faults that a test switches on.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use hyper::Response;
use tokio::{
    sync::{mpsc::Sender, watch},
    time::sleep,
};

use crate::{
    answer::{Status, StreamedBody, throttled},
    resource::Resource,
    store::Store,
};

/// The switches for faults. Clones share them.
#[derive(Clone, Debug)]
pub struct Faults {
    state: Arc<Mutex<State>>,
    /// Grows when all connections are to be cut.
    pub(crate) cuts: watch::Sender<u64>,
    /// Grows when all watches are to end because their version is too old.
    pub(crate) gone: watch::Sender<u64>,
    /// Whether nothing is sent on watches.
    stalled: watch::Sender<bool>,
    /// Whether the bookmark that ends a streamed list is withheld.
    pub(crate) ends_withheld: watch::Sender<bool>,
    /// Whether requests stay without an answer.
    answers_withheld: watch::Sender<bool>,
    store: Store,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) refuses_connections: bool,
    pub(crate) streaming_lists: bool,
    pub(crate) drops_fields: bool,
    pub(crate) offers_protobuf: bool,
    pub(crate) progress_requests: bool,
    pub(crate) watches_end_at_once: bool,
    pub(crate) omits_versions: bool,
    pub(crate) page_size: Option<u64>,
    forbidden: BTreeSet<Resource>,
    missing: BTreeSet<Resource>,
    errors: VecDeque<(Option<Resource>, Reply)>,
    slow: Option<(usize, Duration)>,
}

impl State {
    fn healthy() -> Self {
        Self {
            streaming_lists: true,
            drops_fields: true,
            offers_protobuf: true,
            progress_requests: true,
            ..Self::default()
        }
    }
}

/// An answer in place of the right one.
#[derive(Clone, Copy, Debug)]
enum Reply {
    Error(u16),
    /// 429 with these seconds in `Retry-After`.
    Throttle(u32),
}

impl Faults {
    pub(crate) fn new(store: Store, streaming_lists: bool) -> Self {
        Self {
            state: Arc::new(Mutex::new(State { streaming_lists, ..State::healthy() })),
            cuts: watch::Sender::default(),
            gone: watch::Sender::default(),
            stalled: watch::Sender::default(),
            ends_withheld: watch::Sender::default(),
            answers_withheld: watch::Sender::default(),
            store,
        }
    }

    /// Ends all faults. Connections that are open stay as they are.
    pub fn mend(&self) {
        *self.lock() = State::healthy();
        for switch in [&self.stalled, &self.ends_withheld, &self.answers_withheld] {
            switch.send_replace(false);
        }
    }

    /// Closes every open connection at once, in the middle of what it carries and without TLS's
    /// close notification. New connections are accepted.
    pub fn cut_connections(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Whether new connections are closed as soon as they are accepted.
    pub fn refuse_connections(&self, refuse: bool) {
        self.lock().refuses_connections = refuse;
    }

    /// Whether watches stay open without events and bookmarks. Requests are still answered: watches
    /// with a head and no body.
    pub fn stall_watches(&self, stall: bool) {
        self.stalled.send_replace(stall);
    }

    /// Sends all bodies in pieces of so many bytes with a pause between them; `None` sends bodies
    /// whole.
    pub fn trickle(&self, pieces: Option<(usize, Duration)>) {
        self.lock().slow = pieces;
    }

    /// Answers the next `times` requests for `resource`, or for any, with an error such as 500. 410
    /// says that the client's version is too old, and 504 that it is too large, as from a server
    /// that is behind.
    pub fn fail_next(&self, resource: Option<Resource>, code: u16, times: usize) {
        self.reply_next(resource, Reply::Error(code), times);
    }

    /// Answers the next `times` requests for `resource`, or for any, with 429, a text and `seconds`
    /// in `Retry-After`, as a server's priority and fairness does.
    pub fn throttle_next(&self, resource: Option<Resource>, seconds: u32, times: usize) {
        self.reply_next(resource, Reply::Throttle(seconds), times);
    }

    fn reply_next(&self, resource: Option<Resource>, reply: Reply, times: usize) {
        self.lock().errors.extend(std::iter::repeat_n((resource, reply), times));
    }

    /// Ends every open watch with the error that its version is too old, so that clients must list
    /// again.
    pub fn expire_watches(&self) {
        self.store.expire_log();
        self.gone.send_modify(|gone| *gone += 1);
    }

    /// Whether the resource is refused with 403, as without a role that allows it.
    pub fn forbid(&self, resource: Resource, forbid: bool) {
        toggle(&mut self.lock().forbidden, resource, forbid);
    }

    /// Whether the resource is answered with 404, as by a server without that API.
    pub fn hide(&self, resource: Resource, hide: bool) {
        toggle(&mut self.lock().missing, resource, hide);
    }

    /// Whether lists can be streamed (`sendInitialEvents`). If not, they are refused with 422, as
    /// by a server with that feature off.
    pub fn streaming_lists(&self, offered: bool) {
        self.lock().streaming_lists = offered;
    }

    /// Whether the server leaves out the fields that a client asks to drop (KEP-5958). If not, it
    /// ignores that parameter of the media type, as servers before 1.38 do.
    pub fn drop_fields(&self, offered: bool) {
        self.lock().drops_fields = offered;
    }

    /// Whether the server has protobuf. If not, it answers in JSON, as through a gateway that
    /// translates.
    pub fn offers_protobuf(&self, offered: bool) {
        self.lock().offers_protobuf = offered;
    }

    /// Whether the server's etcd supports progress requests. If not, streamed lists are answered
    /// with 200 and an error of code 500 in the stream.
    pub fn progress_requests(&self, supported: bool) {
        self.lock().progress_requests = supported;
    }

    /// Whether streamed lists stay without the bookmark that ends them. Changes are sent in the
    /// meantime.
    pub fn withhold_list_ends(&self, withhold: bool) {
        self.ends_withheld.send_replace(withhold);
    }

    /// Whether watches from a version end as soon as they begin, as during a server's shutdown.
    pub fn end_watches_at_once(&self, end: bool) {
        self.lock().watches_end_at_once = end;
    }

    /// Whether requests are read, and stay without an answer, even without its head.
    pub fn withhold_answers(&self, withhold: bool) {
        self.answers_withheld.send_replace(withhold);
    }

    /// Whether lists, and the objects of watches, come without a resource version.
    pub fn omit_versions(&self, omit: bool) {
        self.lock().omits_versions = omit;
    }

    /// Has the pages of lists have at most so many objects, whatever the client asks for.
    pub fn limit_pages(&self, size: Option<u64>) {
        self.lock().page_size = size;
    }

    /// Returns when requests may be answered.
    pub(crate) async fn may_answer(&self) {
        // Fails only if the sender, which `self` holds, is gone.
        let _ = self.answers_withheld.subscribe().wait_for(|withheld| !withheld).await;
    }

    /// Returns the answer to a request in place of the right one, if any.
    pub(crate) fn verdict(
        &self,
        resource: Resource,
        verb: &str,
    ) -> Option<Result<Response<StreamedBody>, Status>> {
        let mut state = self.lock();
        let next = state.errors.iter().position(|(r, _)| r.is_none_or(|r| r == resource));
        if let Some((_, reply)) = next.and_then(|next| state.errors.remove(next)) {
            let status = match reply {
                Reply::Throttle(seconds) => return Some(Ok(throttled(seconds))),
                Reply::Error(410) => Status::expired(1, 2),
                Reply::Error(504) => Status::too_large(2, 1),
                Reply::Error(code) => {
                    Status::new(code, "InternalError", "Internal error occurred: on command")
                }
            };
            return Some(Err(status));
        }
        if state.missing.contains(&resource) {
            let message = "the server could not find the requested resource";
            return Some(Err(Status::new(404, "NotFound", message)));
        }
        state.forbidden.contains(&resource).then(|| {
            Err(Status::new(
                403,
                "Forbidden",
                format!(
                    "{resource} is forbidden: User \"system:kube-proxy\" cannot {verb} resource \
                     \"{resource}\" in API group \"{}\" at the cluster scope",
                    resource.group()
                ),
            ))
        })
    }

    /// Returns when watches may be written to.
    pub(crate) async fn not_stalled(&self) {
        // Fails only if the sender, which `self` holds, is gone.
        let _ = self.stalled.subscribe().wait_for(|stalled| !stalled).await;
    }

    /// Writes to a body, slowly if that is commanded. Fails when the client is gone.
    pub(crate) async fn write(&self, body: &Sender<Bytes>, bytes: Bytes) -> Result<(), Gone> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let slow = self.lock().slow;
            let (length, pause) = match slow {
                Some((length, pause)) => (length.clamp(1, rest.len()), Some(pause)),
                None => (rest.len(), None),
            };
            body.send(rest.split_to(length)).await.map_err(|_| Gone)?;
            if let Some(pause) = pause {
                sleep(pause).await;
            }
        }
        Ok(())
    }

    /// The switches as they are; nothing changes while the guard is held.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

fn toggle(set: &mut BTreeSet<Resource>, resource: Resource, on: bool) {
    if on {
        set.insert(resource);
    } else {
        set.remove(&resource);
    }
}
