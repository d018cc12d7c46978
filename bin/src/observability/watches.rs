//! The state of the watches on the API server, as the health and the metrics server report it.

use std::time::Duration;

use switchyard_core::objects::Kind;
use switchyard_sources::kube::WatchHealth;

/// The watches of a source of objects, one for each kind.
pub trait Watches: Send + Sync + 'static {
    /// The time since the server last sent anything on the watch of this kind. `None` if the watch
    /// was never established.
    fn silence(&self, kind: Kind) -> Option<Duration>;

    /// The time since the watch of this kind last failed. `None` if the watch never failed. A
    /// failed watch is opened again.
    fn last_failure(&self, kind: Kind) -> Option<Duration>;

    /// The time for which the server has answered each request of the watch of this kind with
    /// status 401. `None` if the last answer, or the last failure, is another.
    fn unauthorized(&self, kind: Kind) -> Option<Duration>;
}

impl Watches for WatchHealth {
    fn silence(&self, kind: Kind) -> Option<Duration> {
        self.heard(kind)
    }

    fn last_failure(&self, kind: Kind) -> Option<Duration> {
        self.failed(kind).map(|(age, _)| age)
    }

    fn unauthorized(&self, kind: Kind) -> Option<Duration> {
        Self::unauthorized(self, kind)
    }
}
