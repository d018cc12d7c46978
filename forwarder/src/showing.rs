//! Whether endpoints see the addresses of clients.
//!
//! The answers have to come back to this node. Where they do not, although everything was set up
//! for it, as with a network plugin that leads packets past the rules, connections show it: they
//! succeed from the node's address alone. A few of them in a row, more where it has worked before,
//! and no client is shown for a while, as each such connection has waited for a timeout. Single
//! failures are those of single clients, which a network policy may keep from an endpoint.
//!
//! Nothing shows whether a datagram was answered in vain, so clients of datagrams are shown only
//! after a connection has succeeded.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use switchyard_core::model::{IpFamily, PerFamily, Protocol};

/// The connections in a row that must fail before the first success, and after one.
const FAILURES: [u32; 2] = [3, 16];

/// The time after which clients are shown again that endpoints did not answer.
const REST: Duration = Duration::from_secs(60);

/// The families in which clients are shown.
#[derive(Default)]
pub(crate) struct Showing(PerFamily<OfFamily>);

#[derive(Default)]
struct OfFamily {
    is_on: AtomicBool,
    has_worked: AtomicBool,
    failures: AtomicU32,
    /// The end of the rest, if `is_on` is to be set again.
    rests_until: Mutex<Option<Instant>>,
}

impl Showing {
    /// Sets the families in which clients are to be shown, also one that was given up. Whether that
    /// works is to be found out again.
    pub(crate) fn set(&self, families: PerFamily<bool>) {
        for family in IpFamily::ALL {
            let of_family = self.0.get(family);
            *of_family.rest() = None;
            of_family.start(*families.get(family));
        }
    }

    /// Whether clients of a protocol are shown.
    pub(crate) fn is_on(&self, protocol: Protocol, family: IpFamily) -> bool {
        let of_family = self.0.get(family);
        match protocol {
            Protocol::Tcp => of_family.is_on(Instant::now()),
            Protocol::Udp => of_family.is_on.load(Relaxed) && of_family.has_worked.load(Relaxed),
            Protocol::Sctp => false,
        }
    }

    /// Notes that an endpoint has answered a client that was shown.
    pub(crate) fn worked(&self, family: IpFamily) {
        let OfFamily { has_worked, failures, .. } = self.0.get(family);
        // Most of the time it is known, and processors need not tell each other.
        if !has_worked.load(Relaxed) {
            has_worked.store(true, Relaxed);
        }
        if failures.load(Relaxed) != 0 {
            failures.store(0, Relaxed);
        }
    }

    /// Notes that an endpoint has answered the node, and not a client that was shown before.
    /// Returns whether clients are no longer shown, for a while.
    pub(crate) fn failed(&self, family: IpFamily) -> bool {
        let of_family = self.0.get(family);
        let most = FAILURES[usize::from(of_family.has_worked.load(Relaxed))];
        if of_family.failures.fetch_add(1, Relaxed) + 1 < most {
            return false;
        }
        let mut rests_until = of_family.rest();
        let is_news = of_family.is_on.swap(false, Relaxed);
        if is_news {
            *rests_until = Some(Instant::now() + REST);
        }
        is_news
    }
}

impl OfFamily {
    fn start(&self, is_on: bool) {
        self.failures.store(0, Relaxed);
        self.has_worked.store(false, Relaxed);
        self.is_on.store(is_on, Relaxed);
    }

    /// Whether clients are shown, from now on again if the rest is over.
    fn is_on(&self, now: Instant) -> bool {
        if self.is_on.load(Relaxed) {
            return true;
        }
        let is_over = self.rest().take_if(|until| *until <= now).is_some();
        if is_over {
            self.start(true);
        }
        is_over
    }

    fn rest(&self) -> MutexGuard<'_, Option<Instant>> {
        // A time is whole after any panic.
        self.rests_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_not_shown_for_a_while_after_failures_in_a_row() {
        let showing = Showing::default();
        let both = PerFamily { v4: true, v6: true };
        showing.set(both);
        let fail = |family, times| (0..times).filter(|_| showing.failed(family)).count();
        let is_on = |protocol, family| showing.is_on(protocol, family);
        assert!(is_on(Protocol::Tcp, IpFamily::V6) && !is_on(Protocol::Udp, IpFamily::V6));
        let [before, after] = FAILURES;
        showing.worked(IpFamily::V6);
        assert!(is_on(Protocol::Udp, IpFamily::V6) && !is_on(Protocol::Sctp, IpFamily::V6));
        assert_eq!(fail(IpFamily::V6, after - 1), 0);
        showing.worked(IpFamily::V6);
        assert_eq!(fail(IpFamily::V6, after - 1), 0, "not in a row");
        assert!(is_on(Protocol::Udp, IpFamily::V6));
        assert_eq!(fail(IpFamily::V6, 2), 1, "of one change there is one notice");
        assert!(!is_on(Protocol::Tcp, IpFamily::V6) && !is_on(Protocol::Udp, IpFamily::V6));
        assert!(is_on(Protocol::Tcp, IpFamily::V4), "of another family");
        assert_eq!(fail(IpFamily::V4, before), 1);
        assert!(!is_on(Protocol::Tcp, IpFamily::V4));

        let later = Instant::now() + REST;
        assert!(showing.0.v4.is_on(later), "another try after a rest");
        assert_eq!(fail(IpFamily::V4, before), 1);
        showing.set(both);
        assert!(is_on(Protocol::Tcp, IpFamily::V4) && is_on(Protocol::Tcp, IpFamily::V6));
        showing.set(PerFamily::default());
        assert!(!showing.0.v4.is_on(later + REST), "not at all");
    }
}
