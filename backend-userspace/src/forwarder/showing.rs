//! Whether endpoints see the addresses of clients, whose answers have to come back to this node.
//!
//! Where they do not, connections fail from the client's address, and succeed from the node's. That
//! may be because of the one client, whom a NetworkPolicy keeps away; so a client, an endpoint, and
//! a family are given up one after the other. Nothing shows whether a datagram was answered in
//! vain, so clients of datagrams are shown only after a connection has succeeded.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use switchyard_core::model::{IpFamily, PerFamily, Protocol, ServiceName};

/// The clients that must fail, without a success in between, before an endpoint is given up.
const CLIENTS: usize = 3;

/// The Services of which endpoints must be given up, without a success in between, before a family
/// is.
const SERVICES: usize = 2;

/// The time for which one client is left out at one endpoint.
const LEFT_OUT: Duration = Duration::from_secs(10);

/// The most clients that are left out, where further ones are tried each time, and the most
/// endpoints that have failed, where each further one takes the place of another.
const MOST: usize = 1024;

/// The times for which an endpoint or a family is given up, at first and at most.
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
    /// The endpoints that have failed since their last success.
    endpoints: HashMap<IpAddr, Endpoint>,
    /// The Services of endpoints that were given up since the last success of any.
    services: BTreeSet<ServiceName>,
    given_up: Option<GivenUp>,
}

struct Endpoint {
    /// The time of the last failure.
    last: Instant,
    /// The clients that have failed before it was given up.
    failed: BTreeSet<IpAddr>,
    given_up: Option<GivenUp>,
}

/// An endpoint or a family that is given up.
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
        let Doubts { endpoints, given_up, .. } = &mut *doubts;
        let of_endpoint = endpoints.get_mut(&endpoint).and_then(|of| of.given_up.as_mut());
        let mut given_up: Vec<&mut GivenUp> = of_endpoint.into_iter().chain(given_up).collect();
        let is_shown =
            given_up.iter().all(|given_up| protocol == Protocol::Tcp && given_up.until <= now);
        if is_shown {
            given_up.iter_mut().for_each(|given_up| given_up.tried(now));
        }
        is_shown
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
            doubts.endpoints.remove(&endpoint);
            doubts.services.clear();
            doubts.given_up = None;
            let are_left = !doubts.left_out.is_empty() || !doubts.endpoints.is_empty();
            has_doubts.store(are_left, Relaxed);
        }
    }

    /// Notes that an endpoint of a Service has accepted a connection of the node, and not one of a
    /// client that was shown before. Returns whether clients of the family are shown no longer.
    pub(crate) fn failed(
        &self,
        service: &ServiceName,
        client: IpAddr,
        endpoint: IpAddr,
        now: Instant,
    ) -> bool {
        let of_family = self.0.get(IpFamily::of(&client));
        let mut doubts = of_family.doubts();
        of_family.has_doubts.store(true, Relaxed);
        if doubts.left_out.len() >= MOST {
            doubts.left_out.retain(|_, until| now < *until);
        }
        if doubts.left_out.len() < MOST {
            doubts.left_out.insert((client, endpoint), now + LEFT_OUT);
        }
        if doubts.given_up.is_some() {
            return false;
        }
        let endpoints = &mut doubts.endpoints;
        if endpoints.len() >= MOST && !endpoints.contains_key(&endpoint) {
            // Endpoints that are gone do not fail any more.
            let oldest = endpoints.iter().min_by_key(|(_, of)| of.last).map(|(ip, _)| *ip);
            oldest.map(|oldest| endpoints.remove(&oldest));
        }
        let new = || Endpoint { last: now, failed: BTreeSet::new(), given_up: None };
        let of_endpoint = endpoints.entry(endpoint).or_insert_with(new);
        of_endpoint.last = now;
        if of_endpoint.given_up.is_some() {
            return false;
        }
        of_endpoint.failed.insert(client);
        if of_endpoint.failed.len() < CLIENTS {
            return false;
        }
        of_endpoint.given_up = Some(GivenUp::new(now));
        doubts.services.insert(service.clone());
        if doubts.services.len() < SERVICES {
            return false;
        }
        // The endpoints are judged anew when the family is not given up any more.
        doubts.endpoints.clear();
        doubts.given_up = Some(GivenUp::new(now));
        of_family.has_worked.store(false, Relaxed);
        true
    }
}

impl GivenUp {
    fn new(now: Instant) -> Self {
        let wait = GIVEN_UP[0];
        Self { until: now + wait, wait: wait * 2 }
    }

    /// Notes that a connection tries again.
    fn tried(&mut self, now: Instant) {
        self.until = now + self.wait;
        self.wait = (self.wait * 2).min(GIVEN_UP[1]);
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

    fn client(last: u8) -> IpAddr {
        [203, 0, 113, last].into()
    }

    /// The only endpoint of a Service.
    fn pod(last: u8) -> IpAddr {
        [10, 0, 1, last].into()
    }

    /// Families that are shown, and how the clients of one begin and fail.
    struct Tried(Showing, Instant);

    impl Tried {
        fn new() -> Self {
            let showing = Showing::default();
            showing.set(PerFamily { v4: true, v6: true });
            Self(showing, Instant::now())
        }

        fn shows(&self, to: u8, last: u8, after: u64) -> bool {
            let now = self.1 + Duration::from_secs(after);
            self.0.shows(Protocol::Tcp, client(last), pod(to), now)
        }

        fn fail(&self, to: u8, last: u8) -> bool {
            let service = ServiceName::new("default", &format!("service-{to}"));
            self.0.failed(&service, client(last), pod(to), self.1)
        }

        fn work(&self, to: u8, last: u8) {
            self.0.worked(client(last), pod(to));
        }

        /// Whether datagrams of a client are shown.
        fn shows_datagrams(&self, to: u8, last: u8) -> bool {
            self.0.is_on(Protocol::Udp, IpFamily::V4)
                && self.0.shows(Protocol::Udp, client(last), pod(to), self.1)
        }

        /// The seconds after which connections are tried, to an endpoint or to either of two.
        fn tries(&self, to: &[u8]) -> Vec<u64> {
            let is_tried = |after: &u64| to.iter().filter(|to| self.shows(**to, 1, *after)).count();
            (0..200).flat_map(|after| vec![after; is_tried(&after)]).collect()
        }
    }

    const SINGLE: [u64; 8] = [1, 3, 7, 15, 31, 63, 123, 183];

    #[test]
    fn a_client_that_alone_fails_is_left_out_alone() {
        let tried = Tried::new();
        assert!(!tried.shows_datagrams(1, 1), "nothing has shown that it works");
        for _ in 0..9 {
            assert!(!tried.fail(1, 7));
        }
        assert!(!tried.shows(1, 7, 9) && tried.shows(1, 7, 10) && tried.shows(1, 1, 0));
        tried.work(1, 1);
        assert!(tried.shows_datagrams(1, 1) && !tried.shows_datagrams(1, 7));
        tried.fail(1, 8);
        tried.work(1, 1);
        tried.fail(1, 9);
        tried.fail(1, 7);
        assert!(tried.shows(1, 1, 0), "a client succeeded in between");
    }

    #[test]
    fn the_endpoints_of_one_service_are_given_up_alone() {
        let tried = Tried::new();
        tried.work(2, 1);
        assert!((7..50).all(|last| !tried.fail(1, last)));
        assert!(!tried.shows_datagrams(1, 1) && tried.shows_datagrams(2, 1));
        assert!(tried.shows(2, 7, 0) && tried.shows(2, 8, 0));
        assert_eq!(tried.tries(&[1]), SINGLE, "a single one each time");
        tried.work(2, 1);
        assert!(!tried.shows(1, 1, 0), "another endpoint shows nothing about this one");
        assert!((7..10).all(|last| !tried.fail(2, last)), "one of the first has succeeded since");
        tried.work(1, 1);
        assert!(tried.shows(1, 1, 0) && tried.shows(1, 2, 0));
    }

    #[test]
    fn endpoints_that_are_gone_make_room() {
        let tried = Tried::new();
        let service = ServiceName::new("default", "service-0");
        for number in 0..u32::try_from(MOST).unwrap() {
            let gone = IpAddr::from((0x0a00_0200 + number).to_be_bytes());
            assert!((7..10).all(|last| !tried.0.failed(&service, client(last), gone, tried.1)));
        }
        assert!(!tried.fail(1, 7) && !tried.fail(1, 8));
        assert!(tried.fail(1, 9), "the second Service");
    }

    #[test]
    fn a_family_that_has_worked_is_given_up_and_tried_again() {
        let tried = Tried::new();
        let fail = || {
            assert!((7..10).all(|last| !tried.fail(1, last)));
            assert!(!tried.fail(2, 7) && !tried.fail(2, 8) && tried.fail(2, 9));
            assert!(!tried.fail(2, 10));
        };
        tried.work(1, 1);
        fail();
        assert!(!tried.shows(1, 1, 0) && !tried.shows_datagrams(3, 1));
        assert!(tried.0.shows(Protocol::Tcp, IpAddr::from([0; 16]), client(1), tried.1));
        assert_eq!(tried.tries(&[3, 1]), SINGLE, "a single one each time");
        tried.work(3, 1);
        assert!(tried.shows(1, 1, 0) && tried.shows(2, 2, 0) && tried.shows_datagrams(2, 2));
        fail();
        tried.0.set(PerFamily { v4: true, v6: false });
        assert!(tried.shows(1, 7, 0) && tried.0.is_on(Protocol::Tcp, IpFamily::V4));
        assert!(!tried.0.is_on(Protocol::Tcp, IpFamily::V6));
    }
}
