//! The flows of a listener.

use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use switchyard_core::{error::ErrorChain, state::PoolKind};
use tokio::{
    net::UdpSocket,
    sync::mpsc::{UnboundedReceiver, UnboundedSender},
};

use super::{
    PAUSE,
    answers::Failure,
    flow::{Context, Flow, UpstreamError},
};
use crate::forwarder::{
    counters::Counted,
    ends::Ends,
    everywhere::{Everywhere, Wanted},
    limits::LimitReached,
    port::{Port, Warning},
    shared::{OpenListener, Serving, Shared},
};

/// The time that a flow must have been idle to make room for another.
const IDLE: Duration = Duration::from_secs(1);

/// The same for a flow that awaits an answer, such as that of a resolver, which may ask others.
const AWAITING: Duration = Duration::from_secs(5);

/// The flows of one thread.
pub(super) struct Flows {
    shared: Arc<Shared>,
    context: Context,
    /// Where clients send datagrams.
    address: SocketAddr,
    by_client: HashMap<SocketAddr, Flow>,
    everywhere: Arc<Everywhere>,
    /// The wishes of other threads, and the sender by which this one is told from them.
    pub(super) wanted: UnboundedReceiver<Wanted>,
    this: UnboundedSender<Wanted>,
    /// Flows that may be ended to make room, as of the last look.
    idle: Option<Idle>,
    /// The time until which no flow is started, since the system had no socket.
    paused_until: Option<Instant>,
    /// The times until which no other thread is asked for room: for a client at a limit of its own,
    /// which may ask all the time, and for others.
    asked_until: [Option<Instant>; 2],
}

/// Idle flows, the longest idle first, and those that await an answer after the others.
struct Idle {
    of_source: HashMap<IpAddr, VecDeque<SocketAddr>>,
    /// Those of clients with many flows first, and how many that are.
    all: VecDeque<(usize, SocketAddr)>,
}

impl Flows {
    pub(super) fn new(
        open: &OpenListener,
        listener: &Arc<UdpSocket>,
        failures: UnboundedSender<Failure>,
    ) -> Self {
        let (this, wanted) = open.everywhere.join();
        Self {
            shared: Arc::clone(&open.shared),
            context: Context {
                listener: Arc::downgrade(listener),
                failures,
                numbers: 0,
                shared: Arc::clone(&open.shared),
            },
            address: open.address,
            by_client: HashMap::new(),
            everywhere: Arc::clone(&open.everywhere),
            wanted,
            this,
            idle: None,
            paused_until: None,
            asked_until: [None; 2],
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_client.is_empty()
    }

    /// Sends a client's datagrams to the endpoint of the client's flow, which is started if there
    /// is none.
    pub(super) fn forward(&mut self, serving: &Serving, client: SocketAddr, datagrams: &[&[u8]]) {
        let mut rest = datagrams;
        while !rest.is_empty() {
            let flow = self.by_client.get(&client);
            if flow.is_some_and(|flow| !Arc::ptr_eq(&flow.port, &serving.port)) {
                // The address belongs to another Service port now.
                self.end(client);
            }
            if !self.by_client.contains_key(&client) && !self.start(serving, client) {
                return self.dropped(rest.len());
            }
            let Some(flow) = self.by_client.get_mut(&client) else { return };
            let taken = flow.send(rest);
            if flow.is_broken() {
                // What comes next begins another flow.
                self.end(client);
                return self.dropped(rest.len() - taken);
            }
            if taken < rest.len() {
                let refused = rest[taken];
                if !self.move_on(client, Some(refused)) {
                    // Otherwise each of the rest would try all endpoints again.
                    return self.dropped(rest.len() - taken);
                }
            }
            // The other endpoint was sent the datagram that this one did not take.
            rest = rest.get(taken + 1..).unwrap_or_default();
        }
    }

    /// Starts a flow, if need be in the place of an idle one. Returns whether the client has one
    /// now.
    fn start(&mut self, serving: &Serving, client: SocketAddr) -> bool {
        if self.paused_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        let pool = serving.listener.pool(client.ip(), &self.shared.clients);
        let Some(pool) = pool else {
            self.shared.counters.count(Counted::UnservedUdp);
            return false;
        };
        let source = self.shared.source(client.ip());
        let is_shown = serving.listener.shows_clients();
        let ends = Ends { client, destination: self.address, is_shown };
        let mut result = self.try_start(&serving.port, pool, ends, source);
        let full = match &result {
            Err(UpstreamError::Full(full)) => Some(*full),
            Err(UpstreamError::Exhausted(_)) => Some(LimitReached::All),
            Ok(()) | Err(UpstreamError::NoEndpoint) => None,
        };
        if let Some(full) = full {
            if self.make_room(source, full) {
                result = self.try_start(&serving.port, pool, ends, source);
            } else {
                // The client will try again.
                self.ask(Wanted::new(source, full));
            }
        }
        if let Err(error) = result {
            self.report(&serving.port, client, &error);
            return false;
        }
        self.shared.counters.count(Counted::Udp);
        true
    }

    fn try_start(
        &mut self,
        port: &Arc<Port>,
        pool: PoolKind,
        ends: Ends,
        source: IpAddr,
    ) -> Result<(), UpstreamError> {
        let slot = self.shared.slots.take(port.id(), source).map_err(UpstreamError::Full)?;
        let flow = Flow::start(&mut self.context, port, pool, ends, slot)?;
        self.by_client.insert(ends.client, flow);
        self.everywhere.began(source);
        Ok(())
    }

    /// Asks the other threads for room, unless this one has asked just now.
    fn ask(&mut self, wanted: Wanted) {
        let now = Instant::now();
        let until = &mut self.asked_until[usize::from(wanted.full != LimitReached::Client)];
        if until.is_none_or(|until| until <= now) {
            *until = Some(now + PAUSE);
            self.everywhere.ask_next(&self.this, wanted);
        }
    }

    /// Makes room for a flow of another thread, or asks the next.
    pub(super) fn make_room_for(&mut self, wanted: Wanted) {
        if !self.make_room(wanted.source, wanted.full) {
            self.everywhere.ask_next(&self.this, wanted);
        }
    }

    /// Ends an idle flow of the client, or else of a client who has more flows, so that a client
    /// with many flows cannot end those of others. Returns whether there was one.
    fn make_room(&mut self, source: IpAddr, full: LimitReached) -> bool {
        // A list for each tick at most: finding idle flows for each refused datagram would take all
        // the time.
        let mut idle = self.idle.take().unwrap_or_else(|| self.list_idle());
        let helps = |flow: &Flow| {
            // Otherwise its place is not the one that is missing.
            full != LimitReached::Endpoint || self.shared.source_ports.are_taken(flow.endpoint())
        };
        let is_idle = |flow: SocketAddr| {
            self.by_client.get(&flow).is_some_and(|flow| flow.is_quiet() && helps(flow))
        };
        let own = idle.of_source.get_mut(&source);
        let mut found = own.and_then(|own| first(own, |flow| is_idle(*flow)));
        if found.is_none() && full != LimitReached::Client {
            let own = self.everywhere.count(source);
            let are_of_more = |(count, _): &(usize, SocketAddr)| *count > own;
            found = std::iter::from_fn(|| idle.all.pop_front_if(|next| are_of_more(next)))
                .map(|(_, flow)| flow)
                .find(|flow| is_idle(*flow));
        }
        self.idle = Some(idle);
        found.is_some_and(|flow| self.end(flow))
    }

    fn list_idle(&self) -> Idle {
        let now = Instant::now();
        let idle = self.by_client.iter();
        let idle = idle.filter(|(_, flow)| {
            let enough = if flow.is_awaited() { AWAITING } else { IDLE };
            flow.is_quiet() && now - flow.used >= enough
        });
        let mut idle: Vec<(&SocketAddr, &Flow)> = idle.collect();
        // What comes for one that awaits an answer would be lost.
        idle.sort_by_key(|(_, flow)| (flow.is_awaited(), flow.used));
        let mut of_source: HashMap<IpAddr, VecDeque<SocketAddr>> = HashMap::new();
        for (client, flow) in &idle {
            of_source.entry(flow.source()).or_default().push_back(**client);
        }
        let count = |flow: &Flow| self.everywhere.count(flow.source());
        let all = idle.iter().map(|(client, flow)| (count(flow), **client));
        let mut all: Vec<(usize, SocketAddr)> = all.collect();
        all.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        Idle { of_source, all: all.into() }
    }

    /// Moves the flow of a client to another endpoint, if it still has the one that failed.
    pub(super) fn endpoint_failed(&mut self, failure: Failure) {
        let flow = self.by_client.get(&failure.client);
        let Some(flow) = flow.filter(|flow| flow.is_at(failure.upstream)) else { return };
        if flow.is_broken() {
            self.end(failure.client);
            return;
        }
        let is_refused = flow.is_awaited();
        if !self.move_on(failure.client, None) && is_refused {
            self.dropped(1);
        }
    }

    /// Moves a flow to another endpoint, with the datagram at hand, if there is one. Returns
    /// whether the client still has a flow.
    fn move_on(&mut self, client: SocketAddr, at_hand: Option<&[u8]>) -> bool {
        let Self { by_client, context, .. } = self;
        let Some(flow) = by_client.get_mut(&client) else { return false };
        if let Err(error) = flow.move_on(context, at_hand) {
            let port = Arc::clone(&flow.port);
            self.report(&port, client, &error);
            self.end(client);
            return false;
        }
        true
    }

    /// Counts and logs why a client has no flow.
    fn report(&mut self, port: &Port, client: SocketAddr, error: &UpstreamError) {
        let err = match error {
            UpstreamError::Full(full) => return self.shared.slots.refuse(port, client.ip(), *full),
            UpstreamError::NoEndpoint => "no endpoint is left".to_owned(),
            UpstreamError::Exhausted(error) => {
                self.paused_until = Some(Instant::now() + PAUSE);
                ErrorChain(error).to_string()
            }
        };
        self.shared.counters.count(Counted::UnservedUdp);
        if port.is_due(Warning::Unserved) {
            tracing::warn!(service = %port.id().name, %client, err, "No endpoint took a flow");
        }
    }

    /// Counts datagrams that go nowhere.
    fn dropped(&self, datagrams: usize) {
        self.shared.counters.add(Counted::DroppedIn, datagrams as u64);
    }

    /// Ends the flows of other Service ports, and those whose endpoints no longer serve.
    pub(super) fn end_unserved(&mut self, port: &Arc<Port>) {
        self.retain(|flow| Arc::ptr_eq(&flow.port, port) && port.serves(flow.endpoint()));
    }

    /// Ends the flows that are idle. Questions and their answers, such as those of DNS, are a whole
    /// flow as a rule, and keep the place for half of the time only: by default no less than the
    /// kernel's connection tracking keeps it (`nf_conntrack_udp_timeout`).
    pub(super) fn tick(&mut self, now: Instant, idle: Duration) {
        self.idle = None;
        self.retain(|flow| {
            flow.look(now);
            now - flow.used < if flow.is_answered() { idle / 2 } else { idle }
        });
    }

    fn retain(&mut self, mut stays: impl FnMut(&mut Flow) -> bool) {
        let Self { by_client, everywhere, .. } = self;
        by_client.retain(|_, flow| {
            let stays = stays(flow);
            if !stays {
                everywhere.ended(flow.source());
            }
            stays
        });
    }

    fn end(&mut self, client: SocketAddr) -> bool {
        let Some(ended) = self.by_client.remove(&client) else { return false };
        self.everywhere.ended(ended.source());
        true
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.retain(|_| false);
    }
}

/// Takes items until one is as wanted.
fn first<T>(items: &mut VecDeque<T>, is_wanted: impl Fn(&T) -> bool) -> Option<T> {
    std::iter::from_fn(|| items.pop_front()).find(is_wanted)
}

#[cfg(test)]
mod tests {
    use std::io;

    use socket2::Socket;
    use switchyard_core::state::Action;
    use test_netns::wait::{PATIENCE, scaled};
    use tokio::{sync::mpsc::unbounded_channel, time::timeout};

    use super::*;
    use crate::forwarder::{
        platform::{Platform, Receiving},
        shared::ForwarderConfig,
        testing::warnings,
        udp::tests::serving,
    };

    #[tokio::test]
    async fn a_client_with_its_share_of_flows_ends_none_of_others() {
        let config = ForwarderConfig { connections: Some(9), ..ForwarderConfig::default() };
        let shared = Arc::new(Shared::new(config));
        let endpoint = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 53));
        let served = || serving(&[endpoint.local_addr().unwrap()], address);
        let serving = served();
        let open = OpenListener::new(&shared, address, served(), None);
        let listener = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut flows = Flows::new(&open, &Arc::new(listener), unbounded_channel().0);

        let client = |last: u8, port: u16| SocketAddr::from(([127, 0, 0, last], port));
        (1..=3).for_each(|port| flows.forward(&serving, client(1, port), &[b"?"]));
        let before = Instant::now() - 2 * AWAITING;
        flows.by_client.values_mut().for_each(|flow| flow.look(before));
        flows.forward(&serving, client(2, 1), &[b"?"]);
        assert_eq!(flows.by_client.len(), 4);

        // The second client may have one flow, as the other has most of the places.
        flows.forward(&serving, client(2, 2), &[b"?"]);
        assert!((1..=3).all(|port| flows.by_client.contains_key(&client(1, port))));
        let refused = shared.counters.get(Counted::RefusedClient);
        assert_eq!((flows.by_client.len(), refused), (4, 1));
    }

    /// A system that lets no socket receive.
    #[cfg(target_os = "linux")]
    struct Deaf;

    #[cfg(target_os = "linux")]
    impl Platform for Deaf {
        fn receive_datagrams(&self, _: &Socket, _: &mut Receiving) -> io::Result<bool> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn is_passing(&self, _error: &io::Error) -> bool {
            false
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_flow_ends_without_blame_when_its_socket_is_of_no_use() {
        let mut shared = Shared::new(ForwarderConfig::default());
        shared.platform = Box::new(Deaf);
        let shared = Arc::new(shared);
        let endpoint = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = SocketAddr::from(([127, 0, 0, 1], 7));
        let serving = || serving(&[endpoint.local_addr().unwrap()], client);
        let open = OpenListener::new(&shared, client, serving(), None);
        let listener = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let (failures, mut failed) = unbounded_channel();
        let mut flows = Flows::new(&open, &listener, failures);
        let serving = serving();
        endpoint.set_read_timeout(Some(scaled(PATIENCE))).unwrap();
        let came = || endpoint.recv_from(&mut [0; 9]).unwrap().1;

        // It receives no answer.
        flows.forward(&serving, client, &[b"?"]);
        endpoint.send_to(b"!", came()).unwrap();
        let failure = timeout(scaled(PATIENCE), failed.recv()).await;
        flows.endpoint_failed(failure.unwrap().unwrap());
        assert!(flows.is_empty());

        // Someone has disconnected it.
        flows.forward(&serving, client, &[b"?"]);
        came();
        flows.by_client[&client].disconnect().unwrap();
        flows.forward(&serving, client, &[b"?", b"?"]);
        assert!(flows.is_empty());
        flows.forward(&serving, client, &[b"?"]);
        came();
        let counts = [Counted::DatagramsIn, Counted::DroppedIn, Counted::Retries, Counted::LeftOut];
        assert_eq!(counts.map(|counted| shared.counters.get(counted)), [3, 2, 0, 0]);
    }

    #[tokio::test]
    async fn each_datagram_of_a_burst_is_sent_or_counted_as_dropped() {
        let shared = Arc::new(Shared::new(ForwarderConfig::default()));
        let bind = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (refusing, taking) = (bind(), bind());
        // A socket that is connected refuses datagrams of others.
        refusing.connect(refusing.local_addr().unwrap()).unwrap();
        let [refuses, takes] = [&refusing, &taking].map(|socket| socket.local_addr().unwrap());
        let address = SocketAddr::from(([127, 0, 0, 1], 53));
        let open = OpenListener::new(&shared, address, serving(&[refuses], address), None);
        let listener = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let count = |counted| shared.counters.get(counted);

        // Both of a resolver's, of which the first is refused.
        let mut flows = Flows::new(&open, &listener, unbounded_channel().0);
        let serving_two = serving(&[refuses, takes], address);
        taking.set_read_timeout(Some(scaled(PATIENCE))).unwrap();
        for port in [5, 6] {
            let client = SocketAddr::from(([127, 0, 0, 1], port));
            flows.forward(&serving_two, client, &[b"A", b"AAAA"]);
            let received = [(); 2].map(|()| {
                let mut buffer = [0; 9];
                let length = taking.recv(&mut buffer).unwrap();
                buffer[..length].to_vec()
            });
            assert_eq!(received, [b"A".to_vec(), b"AAAA".to_vec()]);
        }

        // As many endpoints are tried as for a connection.
        let others = [(); 20].map(|()| bind());
        let all = others.each_ref().map(|other| {
            let address = other.local_addr().unwrap();
            other.connect(address).unwrap();
            address
        });
        let before = [Counted::Retries, Counted::DroppedIn].map(count);
        let client = SocketAddr::from(([127, 0, 0, 1], 7));
        flows.forward(&serving(&all, address), client, &[b"A", b"AAAA"]);
        assert_eq!(
            [Counted::Retries, Counted::DroppedIn].map(count),
            [before[0] + 8, before[1] + 1]
        );
        assert!(!flows.by_client.contains_key(&client));
        let now = || [Counted::DatagramsIn, Counted::DroppedIn, Counted::Udp].map(count);
        let before = now();

        // Too large to be kept.
        let datagrams = [&[b'?'; 5000][..]; 6];
        for port in [1, 2] {
            flows.forward(&serving_two, SocketAddr::from(([127, 0, 0, 1], port)), &datagrams);
        }
        assert_eq!(now(), [before[0] + 12, before[1], before[2] + 2]);

        flows.forward(
            &serving(&[refuses], address),
            SocketAddr::from(([127, 0, 0, 1], 3)),
            &datagrams,
        );
        let after = now();
        assert_eq!(after[0] + after[1], before[0] + before[1] + 18);
        assert_eq!(after[2], before[2] + 3, "no flow is started for the rest");

        let mut dropping = serving(&[refuses], address);
        dropping.listener.action = Action::Drop;
        for (serving, warned) in [(serving(&[], address), 1), (dropping, 0)] {
            let before = (count(Counted::UnservedUdp), count(Counted::DroppedIn));
            let client = SocketAddr::from(([127, 0, 0, 1], 4));
            let logged = warnings(|| flows.forward(&serving, client, &datagrams));
            assert_eq!(logged.len(), warned, "{logged:?}");
            let after = (count(Counted::UnservedUdp), count(Counted::DroppedIn));
            assert_eq!(after, (before.0 + 1, before.1 + 6));
        }
    }
}
