//! Whether endpoints see the addresses of clients.
//!
//! The answers have to come back to this node. Where they do not, as with a network plugin that
//! leads packets past the rules, a firewall, or after another program has removed the rules,
//! connections show it by contrast: they fail from the client's address, and succeed to the same
//! endpoint from the node's. That may be because of the one client, whom a NetworkPolicy keeps from
//! the endpoint: it is left out for a while at this endpoint. If it is so with several clients, and
//! none in between has succeeded, no client of the family is shown for a while; then single
//! connections try it.
//!
//! Nothing shows whether a datagram was answered in vain, so clients of datagrams are shown only
//! after a connection has succeeded, until the family is given up.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use switchyard_core::model::{IpFamily, PerFamily, Protocol};

/// The clients that must fail, without a success in between, before a family is given up.
const CLIENTS: usize = 3;

/// The time for which one client is left out at one endpoint.
const LEFT_OUT: Duration = Duration::from_secs(10);

/// The most clients that are left out. Further ones are tried each time.
const MOST_LEFT_OUT: usize = 1024;

/// The times for which a family is given up, at first and at most.
const GIVEN_UP: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// The families in which clients are shown.
#[derive(Default)]
pub(crate) struct Showing(PerFamily<OfFamily>);

#[derive(Default)]
struct OfFamily {
    /// Whether clients are to be shown.
    is_on: AtomicBool,
    /// Whether a connection has succeeded, and the family has not been given up since.
    has_worked: AtomicBool,
    /// Whether `doubts` holds anything, without which no connection needs the lock.
    has_doubts: AtomicBool,
    doubts: Mutex<Doubts>,
}

#[derive(Default)]
struct Doubts {
    /// The clients, each with an endpoint, that are left out, and until when.
    left_out: HashMap<(IpAddr, IpAddr), Instant>,
    /// The clients that have failed since the last success.
    failed: BTreeSet<IpAddr>,
    given_up: Option<GivenUp>,
}

/// A family that is given up.
#[derive(Clone, Copy)]
struct GivenUp {
    /// The time of the next try.
    until: Instant,
    /// The time from that try to the next.
    wait: Duration,
}

impl Showing {
    /// Sets the families in which clients are to be shown, also one that was given up. Whether that
    /// works is to be found out again.
    pub(crate) fn set(&self, families: PerFamily<bool>) {
        for family in IpFamily::ALL {
            let of_family = self.0.get(family);
            let mut doubts = of_family.doubts();
            *doubts = Doubts::default();
            of_family.has_doubts.store(false, Relaxed);
            of_family.has_worked.store(false, Relaxed);
            of_family.is_on.store(*families.get(family), Relaxed);
        }
    }

    /// Whether clients of a protocol may be shown; [`shows`](Self::shows) decides.
    pub(crate) fn is_on(&self, protocol: Protocol, family: IpFamily) -> bool {
        let OfFamily { is_on, has_worked, .. } = self.0.get(family);
        is_on.load(Relaxed)
            && match protocol {
                Protocol::Tcp => true,
                Protocol::Udp => has_worked.load(Relaxed),
                Protocol::Sctp => false,
            }
    }

    /// Whether a client is shown to an endpoint in a connection or flow that begins now, for which
    /// [`is_on`](Self::is_on) holds. A connection may be the one that tries whether it works again.
    pub(crate) fn shows(
        &self,
        protocol: Protocol,
        client: IpAddr,
        endpoint: IpAddr,
        now: Instant,
    ) -> bool {
        let of_family = self.0.get(IpFamily::of(&client));
        if !of_family.has_doubts.load(Relaxed) {
            return true;
        }
        let mut doubts = of_family.doubts();
        if doubts.left_out.get(&(client, endpoint)).is_some_and(|until| now < *until) {
            return false;
        }
        match &mut doubts.given_up {
            None => true,
            Some(GivenUp { until, wait }) if protocol == Protocol::Tcp && *until <= now => {
                *until = now + *wait;
                *wait = (*wait * 2).min(GIVEN_UP[1]);
                true
            }
            Some(_) => false,
        }
    }

    /// Notes that an endpoint has accepted a connection of a client that was shown.
    pub(crate) fn worked(&self, client: IpAddr, endpoint: IpAddr) {
        let OfFamily { has_worked, has_doubts, .. } = self.0.get(IpFamily::of(&client));
        // Most of the time it is known, and processors need not tell each other.
        if !has_worked.load(Relaxed) {
            has_worked.store(true, Relaxed);
        }
        if has_doubts.load(Relaxed) {
            let mut doubts = self.0.get(IpFamily::of(&client)).doubts();
            doubts.left_out.remove(&(client, endpoint));
            doubts.failed.clear();
            doubts.given_up = None;
            has_doubts.store(!doubts.left_out.is_empty(), Relaxed);
        }
    }

    /// Notes that an endpoint has accepted a connection of the node, and not one of a client that
    /// was shown before. Returns whether clients of the family are shown no longer.
    pub(crate) fn failed(&self, client: IpAddr, endpoint: IpAddr, now: Instant) -> bool {
        let of_family = self.0.get(IpFamily::of(&client));
        let mut doubts = of_family.doubts();
        of_family.has_doubts.store(true, Relaxed);
        if doubts.left_out.len() >= MOST_LEFT_OUT {
            doubts.left_out.retain(|_, until| now < *until);
        }
        if doubts.left_out.len() < MOST_LEFT_OUT {
            doubts.left_out.insert((client, endpoint), now + LEFT_OUT);
        }
        if doubts.given_up.is_some() {
            return false;
        }
        doubts.failed.insert(client);
        if doubts.failed.len() < CLIENTS {
            return false;
        }
        let wait = GIVEN_UP[0];
        doubts.given_up = Some(GivenUp { until: now + wait, wait: wait * 2 });
        of_family.has_worked.store(false, Relaxed);
        true
    }
}

impl OfFamily {
    fn doubts(&self) -> MutexGuard<'_, Doubts> {
        // Doubts are whole after any panic.
        self.doubts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: [u8; 4] = [10, 0, 1, 2];

    fn client(last: u8) -> IpAddr {
        [203, 0, 113, last].into()
    }

    /// Families that are shown, and how the clients of one begin and fail.
    struct Tried(Showing, Instant);

    impl Tried {
        fn new() -> Self {
            let showing = Showing::default();
            showing.set(PerFamily { v4: true, v6: true });
            Self(showing, Instant::now())
        }

        fn shows(&self, last: u8, after: u64) -> bool {
            let now = self.1 + Duration::from_secs(after);
            self.0.shows(Protocol::Tcp, client(last), POD.into(), now)
        }

        fn fail(&self, last: u8) -> bool {
            self.0.failed(client(last), POD.into(), self.1)
        }

        fn work(&self, last: u8) {
            self.0.worked(client(last), POD.into());
        }

        /// Whether datagrams of a client are shown.
        fn shows_datagrams(&self, last: u8) -> bool {
            self.0.is_on(Protocol::Udp, IpFamily::V4)
                && self.0.shows(Protocol::Udp, client(last), POD.into(), self.1)
        }
    }

    #[test]
    fn a_client_that_alone_fails_is_left_out_alone() {
        let tried = Tried::new();
        assert!(!tried.shows_datagrams(1), "nothing has shown that it works");
        for _ in 0..9 {
            assert!(!tried.fail(7));
        }
        assert!(!tried.shows(7, 9) && tried.shows(7, 10) && tried.shows(1, 0));
        tried.work(1);
        assert!(tried.shows_datagrams(1) && !tried.shows_datagrams(7));
        assert!(!tried.fail(8), "a client succeeded in between");
        tried.work(1);
        assert!(!tried.fail(9) && !tried.fail(7));
    }

    #[test]
    fn a_family_that_has_worked_is_given_up_and_tried_again() {
        let tried = Tried::new();
        tried.work(1);
        assert!(!tried.fail(7) && !tried.fail(8) && tried.fail(9) && !tried.fail(10));
        assert!(!tried.shows(1, 0) && !tried.shows_datagrams(1));
        assert!(tried.0.shows(Protocol::Tcp, IpAddr::from([0; 16]), client(1), tried.1));
        let tries = (0..200).filter(|after| tried.shows(1, *after)).collect::<Vec<_>>();
        assert_eq!(tries, [1, 3, 7, 15, 31, 63, 123, 183], "a single one each time");
        tried.work(1);
        assert!(tried.shows(1, 0) && tried.shows(2, 0) && tried.shows_datagrams(2));
        assert!(!tried.fail(8) && !tried.fail(9) && tried.fail(7));
        tried.0.set(PerFamily { v4: true, v6: false });
        assert!(tried.shows(7, 0) && tried.0.is_on(Protocol::Tcp, IpFamily::V4));
        assert!(!tried.0.is_on(Protocol::Tcp, IpFamily::V6));
    }
}
