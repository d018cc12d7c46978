//! The interface through which an embedder counts and measures requests.

use std::{fmt, time::Duration};

/// Receives a report of each request to the API server, for metrics such as client-go's
/// `rest_client_*`. `verb` is the HTTP method. The methods are called on the request's path and
/// must not block.
pub trait RequestObserver: Send + Sync + fmt::Debug {
    /// Requests go to `host`, a name or address with its port if that is given. Called before the
    /// first request.
    fn connecting_to(&self, host: &str) {
        let _ = host;
    }

    /// A request has a body of `bytes` bytes.
    fn sent(&self, verb: &str, bytes: u64);

    /// The head of an answer arrived `elapsed` after the request; `status` is `None` if the request
    /// failed without an answer, or was given up.
    fn answered(&self, verb: &str, status: Option<u16>, elapsed: Duration);

    /// A complete body of `bytes` bytes was received. Not called for watches, which end only when
    /// they are cut.
    fn received(&self, verb: &str, bytes: u64);

    /// A request was delayed by `wait`, as the pace of requests demands.
    fn held_back(&self, verb: &str, wait: Duration);
}
