//! The interface of backends: a [`Backend`] can be probed, opened and cleaned up after; an open
//! backend is a [`Proxier`], which syncs; its [`Monitor`] reports changes by other programs.

mod backend;
mod capabilities;
mod error;
mod mode;
mod profile;
mod report;

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use async_trait::async_trait;

pub use self::{
    backend::{Backend, KernelTable, Probed, clean_up, conflicting},
    capabilities::Capabilities,
    error::{ProxierError, RefusedAttempt, RefusedParts},
    mode::Mode,
    profile::Profile,
    report::{DegradedPort, Drift, RuleCount, SyncReport},
};
use crate::{config::NodeConfig, model::ServiceName, state::State, transition::Transition};

/// An open backend: renders resolved states into its kernel's language.
///
/// A backend decides nothing about Services, and may assume every invariant that
/// [`State`] documents. Core remembers what was synced; a backend keeps only
/// what its kernel adds to that, such as slots and handles.
#[async_trait]
pub trait Proxier: Send {
    /// The properties of the backend, with the capabilities that it has on this node. An engine
    /// asks once, before the first sync.
    fn profile(&self) -> Profile;

    /// Sets the kernel parameters that need more privileges than syncs do (`--init-only`), and
    /// programs before what must not be missing then.
    ///
    /// # Errors
    /// If a parameter cannot be set, or the kernel refuses.
    fn prepare(&mut self, _node: &NodeConfig) -> Result<(), ProxierError> {
        Ok(())
    }

    /// Makes the kernel hold [`change.after()`](Transition::after). May block its thread for as
    /// long as the kernel takes, which is why an [`Engine`](crate::engine::Engine) has a thread of
    /// its own.
    ///
    /// A sync may be several transactions, each of them atomic, and every state between them serves
    /// traffic. The transition is empty only if the backend asked to be revisited
    /// ([`SyncReport::requeue_after`]).
    ///
    /// # Errors
    /// If the kernel or a tool refuses. The kernel may then hold a part of the change; the next
    /// call has a transition that covers this one, with [`Transition::is_resync`] set. A backend
    /// that knows which Service ports, or which family, are refused names them
    /// ([`ProxierError::of_parts`]), so that all else is programmed.
    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError>;

    /// Compares what the kernel holds of a Service, and of what all Services share, with what was
    /// synced: `state`. Changes nothing; takes about as long as the comparison of a resync. `None`
    /// if the backend does not compare.
    ///
    /// # Errors
    /// If the kernel, or a tool, does not show what it holds.
    fn compare(
        &mut self,
        _state: &State,
        _service: &ServiceName,
    ) -> Result<Option<Drift>, ProxierError> {
        Ok(None)
    }

    /// Removes everything that this backend programs, whichever program programmed it. Needs no
    /// cluster; a second call finds nothing to remove. A later sync has [`Transition::is_resync`]
    /// set.
    ///
    /// # Errors
    /// If something is left.
    async fn clean_up(&mut self) -> Result<(), ProxierError>;

    /// Returns what is known of the connections that the backend itself forwards and
    /// [`drain`](Self::drain) waits for, also during a sync; `None` where the kernel forwards.
    fn forwards(&self) -> Option<Forwards> {
        None
    }

    /// Takes no more connections, and lets those that the backend itself forwards go on until they
    /// end, at most for a time. Nothing is synced afterwards. Blocks until then; does nothing where
    /// the kernel forwards.
    fn drain(&mut self, _limit: Duration) {}

    /// Opens a monitor of what the backend programs; `None` if changes by other programs cannot be
    /// watched, so that only the periodic resync finds them. An engine asks once, before the
    /// first sync.
    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        None
    }
}

/// The connections that a backend itself forwards.
pub struct Forwards {
    /// Returns whether there are connections now.
    pub are_there: Box<dyn Fn() -> bool + Send + Sync>,
    /// Has new connections wait for another program, as [`Proxier::drain`] does, which waits for a
    /// sync that is under way.
    pub pause: Box<dyn FnOnce() + Send + Sync>,
}

#[async_trait]
impl Proxier for Box<dyn Proxier> {
    fn profile(&self) -> Profile {
        (**self).profile()
    }

    fn prepare(&mut self, node: &NodeConfig) -> Result<(), ProxierError> {
        (**self).prepare(node)
    }

    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        (**self).sync(change).await
    }

    fn compare(
        &mut self,
        state: &State,
        service: &ServiceName,
    ) -> Result<Option<Drift>, ProxierError> {
        (**self).compare(state, service)
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        (**self).clean_up().await
    }

    fn forwards(&self) -> Option<Forwards> {
        (**self).forwards()
    }

    fn drain(&mut self, limit: Duration) {
        (**self).drain(limit);
    }

    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        (**self).monitor()
    }
}

/// Watches the kernel on behalf of a backend. Reports only: when everything is compared, the runner
/// decides.
#[async_trait]
pub trait Monitor: Send {
    /// Waits until another program may have changed what the backend programs. The engine calls
    /// again at once, in a task on its own thread.
    ///
    /// # Errors
    /// If nothing can be watched now. The engine calls again after a while.
    async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError>;

    /// Whether the monitor misses no change since it was made: an error or a report covers what was
    /// lost. Then everything is compared only about once a day. What is not watched is the
    /// backend's to look at, on a period ([`Transition::is_checkup`]).
    fn misses_nothing(&self) -> bool {
        false
    }
}

/// Waits until the monitor of a backend beneath, if there is any, reports a change, or until
/// `other` notices one. What is forgotten with a future is found by the comparison that follows.
///
/// # Errors
/// Those of the monitor, and of `other`.
pub async fn changed_beneath_or(
    beneath: &mut Option<Box<dyn Monitor>>,
    other: impl Future<Output = Result<(), ProxierError>> + Send,
) -> Result<ExternalChange, ProxierError> {
    let mut of_beneath = pin!(async {
        match beneath {
            Some(beneath) => beneath.externally_changed().await,
            None => std::future::pending().await,
        }
    });
    let mut other = pin!(other);
    poll_fn(|context| match of_beneath.as_mut().poll(context) {
        Poll::Pending => {
            let noticed = other.as_mut().poll(context);
            noticed.map(|noticed| noticed.map(|()| ExternalChange::Changed { by: None }))
        }
        changed => changed,
    })
    .await
}

/// A report of a [`Monitor`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExternalChange {
    /// Another program has changed what the backend programs.
    Changed {
        /// The program, if the kernel names it.
        by: Option<String>,
    },
    /// Another program has changed something that may or may not concern the backend.
    Suspected,
}
