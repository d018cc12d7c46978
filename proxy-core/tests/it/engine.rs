//! The engine: it starts, stops and starts again, reports panics, and leaks nothing.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use switchyard_core::{
    config::{NodeConfig, NodePortAddressConfig},
    engine::{Engine, EngineError, InterfaceAddresses},
    objects::{Event, Kind},
    proxier::{ExternalChange, Mode, Monitor, Profile, Proxier, ProxierError, SyncReport},
    state::NodePortAddresses,
    testing::{NODE, service},
    transition::Transition,
};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time::timeout,
};

const FAKE: Mode = Mode::new("fake");
/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A sync that the backend was asked for: its ports, whether it compares, and the node port
/// addresses of IPv4.
type Seen = (usize, bool, NodePortAddresses);

/// A backend that reports its syncs.
struct Fake {
    syncs: UnboundedSender<Seen>,
    /// The part that panics: `backend` or `monitor`.
    panics: &'static str,
    /// Blocks a sync until the sender is gone.
    held: Option<std::sync::mpsc::Receiver<()>>,
    monitors: Arc<AtomicU32>,
}

#[async_trait]
impl Proxier for Fake {
    fn profile(&self) -> Profile {
        Profile::new(FAKE)
    }

    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        assert!(self.panics != "backend", "as asked");
        let after = change.after();
        let sync =
            (after.service_ports.len(), change.is_resync(), after.node.node_ports.v4.clone());
        self.syncs.send(sync).unwrap();
        if let Some(held) = &self.held {
            // Fails when the sender is gone.
            let _ = held.recv();
        }
        Ok(SyncReport::default())
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        Ok(())
    }

    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        self.monitors.fetch_add(1, Ordering::SeqCst);
        let panics = self.panics == "monitor";
        Some(Box::new(Restless { monitors: self.monitors.clone(), reports: 1, panics }))
    }
}

/// A monitor that reports so many changes, and then waits for ever.
struct Restless {
    monitors: Arc<AtomicU32>,
    reports: u32,
    panics: bool,
}

#[async_trait]
impl Monitor for Restless {
    async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError> {
        if self.reports == 0 {
            std::future::pending::<()>().await;
        }
        // After the first sync.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!self.panics, "as asked");
        self.reports -= 1;
        Ok(ExternalChange::Changed { by: None })
    }
}

impl Drop for Restless {
    fn drop(&mut self) {
        self.monitors.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One list of addresses, and none after it, or a panic.
struct Fixed(Option<Vec<IpAddr>>, bool);

#[async_trait]
impl InterfaceAddresses for Fixed {
    async fn changed(&mut self) -> Result<Vec<IpAddr>, Box<dyn std::error::Error + Send + Sync>> {
        match self.0.take() {
            Some(addresses) => Ok(addresses),
            None if self.1 => panic!("as asked"),
            None => std::future::pending().await,
        }
    }
}

fn fake() -> (Fake, UnboundedReceiver<Seen>) {
    let (syncs, received) = mpsc::unbounded_channel();
    (Fake { syncs, panics: "", held: None, monitors: Arc::default() }, received)
}

async fn list(engine: &Engine) {
    engine.send(service("web", "10.0.0.1").port("", "TCP", 80).apply()).await.unwrap();
    for kind in [Kind::Service, Kind::EndpointSlice] {
        engine.send(Event::Listed(kind)).await.unwrap();
    }
}

async fn next(syncs: &mut UnboundedReceiver<Seen>) -> Seen {
    timeout(PATIENCE, syncs.recv()).await.unwrap().unwrap()
}

#[tokio::test]
async fn an_engine_stops_with_everything_it_started_and_its_backend_starts_again() {
    let (fake, mut syncs) = fake();
    let monitors = fake.monitors.clone();
    let mut proxier: Box<dyn Proxier> = Box::new(fake);
    for _ in 0..3 {
        let engine = Engine::builder(NodeConfig::new(NODE)).start(proxier).unwrap();
        let inputs = engine.inputs();
        list(&engine).await;
        let (ports, compares, _) = next(&mut syncs).await;
        assert_eq!((ports, compares), (1, true));
        assert!(next(&mut syncs).await.1, "the monitor reported a change");
        assert_eq!(monitors.load(Ordering::SeqCst), 1);
        // A handle for inputs keeps nothing alive, and nor does the monitor's.
        proxier = engine.stop().unwrap();
        assert_eq!(monitors.load(Ordering::SeqCst), 0);
        assert!(inputs.is_closed());
        assert_eq!(proxier.profile().mode, FAKE);
    }
}

#[tokio::test]
async fn the_first_sync_knows_the_interface_addresses() {
    let (fake, mut syncs) = fake();
    let own: IpAddr = "192.0.2.1".parse().unwrap();
    let other: IpAddr = "198.51.100.1".parse().unwrap();
    let mut node = NodeConfig::new(NODE);
    node.node_port_addresses = vec![NodePortAddressConfig::Cidr("192.0.2.0/24".parse().unwrap())];
    let addresses = Fixed(Some(vec![own, other]), false);
    let engine = Engine::builder(node).addresses(addresses).start(fake).unwrap();
    list(&engine).await;
    assert_eq!(next(&mut syncs).await.2, NodePortAddresses::Only([own].into()));
}

#[tokio::test]
async fn few_events_wait_for_a_sync_and_none_is_lost() {
    let (mut fake, mut syncs) = fake();
    let (go_on, held) = std::sync::mpsc::channel();
    fake.held = Some(held);
    let engine = Engine::builder(NodeConfig::new(NODE)).start(fake).unwrap();
    list(&engine).await;
    // All lists were taken, and the engine's thread is in its first sync.
    next(&mut syncs).await;
    let of = |n: i64| service(&format!("web-{n}"), "10.0.0.1").port("", "TCP", n).apply();
    let inputs = engine.inputs();
    let mut sent = 0;
    while inputs.try_send(of(sent + 1).into()).is_ok() {
        sent += 1;
    }
    drop(go_on);
    // The monitor's report may be one of them.
    assert!((63..=64).contains(&sent), "{sent}");
    engine.send(of(1000)).await.unwrap();
    // With the Service of the list.
    while next(&mut syncs).await.0 < sent as usize + 2 {}
    engine.stop().unwrap();
}

#[tokio::test]
async fn a_panic_of_any_part_is_reported_and_nothing_hangs() {
    for part in ["backend", "monitor", "addresses"] {
        let (mut fake, _syncs) = fake();
        fake.panics = part;
        let addresses = Fixed(Some(Vec::new()), part == "addresses");
        let builder = Engine::builder(NodeConfig::new(NODE)).addresses(addresses);
        let engine = builder.start(fake).unwrap();
        // The engine may have ended before.
        if part == "backend" {
            list(&engine).await;
        }
        for _ in 0..2 {
            timeout(PATIENCE, engine.ended()).await.expect(part);
        }
        let web = service("web", "10.0.0.1").apply();
        assert!(matches!(engine.send(web).await, Err(EngineError::Ended)));
        assert!(matches!(engine.stop(), Err(EngineError::Panicked)));
    }
}

#[tokio::test]
async fn many_engines_run_in_one_process_and_dropping_them_ends_them() {
    let mut engines = Vec::new();
    let mut received = Vec::new();
    let (mut monitors, mut syncs) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        let (fake, receiver) = fake();
        monitors.push(fake.monitors.clone());
        engines.push(Engine::builder(NodeConfig::new(NODE)).start(fake).unwrap());
        received.push(receiver);
    }
    for (engine, received) in engines.iter().zip(&mut received) {
        list(engine).await;
        syncs.push(next(received).await);
    }
    assert!(syncs.iter().all(|(ports, compares, _)| (*ports, *compares) == (1, true)));
    drop(engines);
    assert!(monitors.iter().all(|monitors| monitors.load(Ordering::SeqCst) == 0));
    for received in &mut received {
        // The backends are gone, too: the comparisons that were under way are all that is left.
        while received.recv().await.is_some() {}
    }
}
