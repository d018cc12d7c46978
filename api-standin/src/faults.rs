//! Trouble on command.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{mpsc::Sender, watch},
    time::sleep,
};

use crate::{answer::Status, resource::Resource, store::Store};

/// Switches for everything that can go wrong. Clones share them.
#[derive(Clone, Debug)]
pub struct Faults {
    state: Arc<Mutex<State>>,
    /// Grows when all connections are to be cut.
    cuts: watch::Sender<u64>,
    /// Grows when all watches are to be told that they are too old.
    gone: watch::Sender<u64>,
    /// Whether nothing is sent on watches.
    stalled: watch::Sender<bool>,
    store: Store,
}

#[derive(Debug)]
struct State {
    refuses_connections: bool,
    streaming_lists: bool,
    forbidden: BTreeSet<Resource>,
    missing: BTreeSet<Resource>,
    errors: VecDeque<(Option<Resource>, u16)>,
    slow: Option<(usize, Duration)>,
}

impl Faults {
    pub(crate) fn new(store: Store, streaming_lists: bool) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                refuses_connections: false,
                streaming_lists,
                forbidden: BTreeSet::new(),
                missing: BTreeSet::new(),
                errors: VecDeque::new(),
                slow: None,
            })),
            cuts: watch::Sender::new(0),
            gone: watch::Sender::new(0),
            stalled: watch::Sender::new(false),
            store,
        }
    }

    /// Closes every connection at once, in the middle of whatever it carries and without TLS's
    /// farewell. New ones are accepted.
    pub fn cut_connections(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Whether new connections are closed as soon as they are accepted.
    pub fn refuse_connections(&self, refuse: bool) {
        self.lock().refuses_connections = refuse;
    }

    /// Whether watches stay open but say nothing more: neither events nor bookmarks. Requests are
    /// still answered, with a head and no body if they are watches.
    pub fn stall_watches(&self, stall: bool) {
        self.stalled.send_replace(stall);
    }

    /// Sends all bodies in pieces of so many bytes with a pause between them; `None` ends that.
    pub fn trickle(&self, pieces: Option<(usize, Duration)>) {
        self.lock().slow = pieces;
    }

    /// Answers the next `times` requests for `resource`, or for any, with an error such as 500 or
    /// 429. 504 says that the client's version is too large, as from a server that is behind.
    pub fn fail_next(&self, resource: Option<Resource>, code: u16, times: usize) {
        self.lock().errors.extend(std::iter::repeat_n((resource, code), times));
    }

    /// Forgets all changes so far: a watch that comes back with an earlier version gets 410. See
    /// [`Store::expire_log`].
    pub fn expire_log(&self) {
        self.store.expire_log();
    }

    /// Tells every open watch that its version is too old, and ends it. They can only come back by
    /// listing again.
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

    /// Whether lists can be streamed (`sendInitialEvents`). If not, they are refused with 422, as by
    /// a server with that feature off.
    pub fn streaming_lists(&self, offered: bool) {
        self.lock().streaming_lists = offered;
    }

    pub(crate) fn refuses_connections(&self) -> bool {
        self.lock().refuses_connections
    }

    pub(crate) fn offers_streaming(&self) -> bool {
        self.lock().streaming_lists
    }

    /// The error with which to answer a request, if any.
    pub(crate) fn verdict(&self, resource: Resource, verb: &str) -> Option<Status> {
        let mut state = self.lock();
        let next = state.errors.iter().position(|(r, _)| r.is_none_or(|r| r == resource));
        if let Some((_, code)) = next.and_then(|next| state.errors.remove(next)) {
            return Some(match code {
                429 => Status::new(429, "TooManyRequests", "Too many requests, please try again"),
                504 => Status::too_large(2, 1),
                code => Status::new(code, "InternalError", "Internal error occurred: on command"),
            });
        }
        if state.missing.contains(&resource) {
            let message = "the server could not find the requested resource";
            return Some(Status::new(404, "NotFound", message));
        }
        state.forbidden.contains(&resource).then(|| {
            Status::new(
                403,
                "Forbidden",
                format!(
                    "{resource} is forbidden: User \"system:kube-proxy\" cannot {verb} resource \
                     \"{resource}\" in API group \"{}\" at the cluster scope",
                    resource.group()
                ),
            )
        })
    }

    pub(crate) fn watch_cuts(&self) -> watch::Receiver<u64> {
        self.cuts.subscribe()
    }

    pub(crate) fn watch_gone(&self) -> watch::Receiver<u64> {
        self.gone.subscribe()
    }

    /// Returns when watches may be written to.
    pub(crate) async fn not_stalled(&self) {
        // Fails only if the sender, which we have, is gone.
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

    fn lock(&self) -> MutexGuard<'_, State> {
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
