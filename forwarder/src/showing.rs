//! Whether endpoints see the addresses of clients.
//!
//! The answers have to come back to this node. Where they do not, although everything was set up
//! for it, as with a network plugin that leads packets past the rules, the first connections show
//! it: they succeed from the node's address alone. After a connection that a client was shown for
//! has succeeded, failures are those of single clients.
//!
//! Nothing shows whether a datagram was answered in vain, so clients of datagrams are shown only
//! after a connection has succeeded.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use switchyard_core::model::{IpFamily, PerFamily, Protocol};

/// The connections that must fail before the first success.
const FAILURES: u32 = 3;

/// The families in which clients are shown.
#[derive(Default)]
pub(crate) struct Showing(PerFamily<OfFamily>);

#[derive(Default)]
struct OfFamily {
    is_on: AtomicBool,
    has_worked: AtomicBool,
    failures: AtomicU32,
}

impl Showing {
    /// Sets the families in which clients are to be shown, also one that was given up. Whether that
    /// works is to be found out again.
    pub(crate) fn set(&self, families: PerFamily<bool>) {
        for family in IpFamily::ALL {
            let of_family = self.0.get(family);
            of_family.failures.store(0, Relaxed);
            of_family.has_worked.store(false, Relaxed);
            of_family.is_on.store(*families.get(family), Relaxed);
        }
    }

    /// Whether clients of a protocol are shown.
    pub(crate) fn is_on(&self, protocol: Protocol, family: IpFamily) -> bool {
        let OfFamily { is_on, has_worked, .. } = self.0.get(family);
        is_on.load(Relaxed)
            && match protocol {
                Protocol::Tcp => true,
                Protocol::Udp => has_worked.load(Relaxed),
                Protocol::Sctp => false,
            }
    }

    /// Notes that an endpoint has answered a client that was shown.
    pub(crate) fn worked(&self, family: IpFamily) {
        let has_worked = &self.0.get(family).has_worked;
        // Most of the time it is known, and processors need not tell each other.
        if !has_worked.load(Relaxed) {
            has_worked.store(true, Relaxed);
        }
    }

    /// Notes that an endpoint has answered the node, and not a client that was shown before.
    /// Returns whether clients are shown no longer.
    pub(crate) fn failed(&self, family: IpFamily) -> bool {
        let OfFamily { is_on, has_worked, failures } = self.0.get(family);
        if has_worked.load(Relaxed) || failures.fetch_add(1, Relaxed) + 1 < FAILURES {
            return false;
        }
        is_on.swap(false, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_shown_until_it_has_failed_and_never_worked() {
        let showing = Showing::default();
        let both = PerFamily { v4: true, v6: true };
        showing.set(both);
        let fail = |family| [(); 4].map(|()| showing.failed(family));
        let is_on = |protocol, family| showing.is_on(protocol, family);
        assert!(is_on(Protocol::Tcp, IpFamily::V6) && !is_on(Protocol::Udp, IpFamily::V6));
        showing.worked(IpFamily::V6);
        assert!(is_on(Protocol::Udp, IpFamily::V6) && !is_on(Protocol::Sctp, IpFamily::V6));
        assert_eq!(fail(IpFamily::V6), [false; 4]);
        assert_eq!(fail(IpFamily::V4), [false, false, true, false]);
        assert!(is_on(Protocol::Tcp, IpFamily::V6) && !is_on(Protocol::Tcp, IpFamily::V4));
        showing.set(both);
        assert!(is_on(Protocol::Tcp, IpFamily::V4), "another try");
        assert_eq!(fail(IpFamily::V4), [false, false, true, false]);
    }
}
