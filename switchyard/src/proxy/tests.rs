//! A proxy without a kernel: in whatever order and by whatever thread it is called.

use std::{
    fs::File,
    io::{Read, Seek},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    task::Waker,
    time::Instant,
};

use async_trait::async_trait;
use switchyard_core::{
    model::PerFamily,
    proxier::{Mode, Probed, Proxier},
    testing::{service, until},
    transition::Transition,
};
use tokio::{
    sync::mpsc::{Receiver, channel},
    time::timeout,
};
use tracing::subscriber::set_default;

use super::*;
use crate::StartError;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A proxy in user space.
const USER_SPACE: Profile = Profile { translates_flows: false, ..Profile::new(Mode::new("fake")) };

/// A backend that programs nothing, and panics after its first sync if `panics` is set. A sync
/// takes as long as `syncing` is locked.
#[derive(Clone)]
struct Fake {
    profile: Profile,
    ports: Arc<AtomicUsize>,
    panics: Arc<AtomicBool>,
    clean_ups: Arc<AtomicUsize>,
    forwards: Arc<AtomicBool>,
    is_paused: Arc<AtomicBool>,
    syncing: Arc<Mutex<()>>,
    /// The log of a backend whose first sync fails.
    failure: Option<Arc<File>>,
}

impl Fake {
    fn new(profile: Profile) -> Self {
        let (ports, panics, clean_ups, forwards, is_paused, syncing, failure) = Default::default();
        Self { profile, ports, panics, clean_ups, forwards, is_paused, syncing, failure }
    }
}

#[async_trait]
impl Proxier for Fake {
    fn profile(&self) -> Profile {
        self.profile
    }

    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        let is_first = self.ports.swap(change.after().service_ports.len(), SeqCst) == 0;
        assert!(is_first || !self.panics.load(SeqCst), "as asked");
        drop(self.syncing.lock().unwrap());
        if let Some(log) = self.failure.take() {
            // As long as the engine's thread runs.
            mem::forget(set_default(tracing_subscriber::fmt().with_writer(log).finish()));
            return Err(ProxierError::backend(self.profile.mode, "no room", "as asked"));
        }
        Ok(SyncReport::default())
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        Ok(())
    }

    fn forwards(&self) -> Option<Forwards> {
        let (forwards, is_paused) = (Arc::clone(&self.forwards), Arc::clone(&self.is_paused));
        Some(Forwards {
            are_there: Box::new(move || forwards.load(SeqCst)),
            pause: Box::new(move || is_paused.store(true, SeqCst)),
        })
    }
}

impl Backend for Fake {
    fn profile(&self) -> Profile {
        self.profile
    }

    fn probe(&self) -> Result<Probed, ProxierError> {
        let proxier = self.clone();
        Ok(Probed::new(PerFamily { v4: true, v6: true }, || Ok(Box::new(proxier))))
    }

    fn clean_up(&self, _keep: Option<Mode>) -> Result<(), ProxierError> {
        self.clean_ups.fetch_add(1, SeqCst);
        Ok(())
    }
}

fn builder(fake: &Fake) -> Builder {
    Proxy::builder(NodeConfig::new("node-1"))
        .backend(fake.clone())
        .addresses(false)
        .conntrack(false)
}

fn web(number: i64) -> Object {
    service(&format!("web-{number}"), "10.0.0.1").port("", "TCP", number).object()
}

fn list(proxy: &Proxy) {
    proxy.replace(Kind::Service, [web(1)]).unwrap();
    proxy.replace(Kind::EndpointSlice, []).unwrap();
}

/// All calls block the only thread of the runtime, and wait many times for a place in the queue.
#[tokio::test]
async fn a_task_may_block() {
    let fake = Fake::new(USER_SPACE);
    let mut timing = RunnerConfig::default();
    // Twice as long cannot be expressed.
    timing.longest_retry = Duration::MAX;
    let proxy = builder(&fake).timing(timing).start().unwrap();
    let mut reports = proxy.reports();
    list(&proxy);
    for number in 2..=1000 {
        proxy.apply(web(number)).unwrap();
    }
    while fake.ports.load(SeqCst) < 1000 {
        reports.blocking_recv().unwrap();
    }
    proxy.stop().unwrap();
    assert_eq!(fake.clean_ups.load(SeqCst), 0);
    // The last of them was under way, and then there are none.
    while reports.recv().await.is_some() {}
}

#[tokio::test]
async fn endpoints_are_followed_as_long_as_connections_are_waited_for() {
    let fake = Fake::new(USER_SPACE);
    fake.forwards.store(true, SeqCst);
    let proxy = builder(&fake).start().unwrap();
    let (handle, health, mut reports) = (proxy.handle(), proxy.health(), proxy.reports());
    list(&proxy);
    let draining = thread::spawn(move || proxy.drain(PATIENCE));
    timeout(PATIENCE, async {
        while health.report(Instant::now()).healthy() {
            tokio::task::yield_now().await;
        }
        handle.send(Event::Apply(web(2))).await.unwrap();
        while fake.ports.load(SeqCst) < 2 {
            reports.recv().await.unwrap();
        }
        fake.forwards.store(false, SeqCst);
        while reports.recv().await.is_some() {}
    })
    .await
    .expect("the end comes with that of the connections");
    draining.join().unwrap().unwrap();
}

/// The program may end while the sync goes on.
#[test]
fn new_connections_wait_though_a_sync_holds_up_the_end() {
    let fake = Fake::new(USER_SPACE);
    let proxy = builder(&fake).start().unwrap();
    let syncing = fake.syncing.lock().unwrap();
    list(&proxy);
    until("a sync is under way", || fake.ports.load(SeqCst) == 1);
    let draining = thread::spawn(move || proxy.drain(Duration::from_millis(1)));
    until("new connections wait", || fake.is_paused.load(SeqCst));
    assert!(!draining.is_finished());
    drop(syncing);
    draining.join().unwrap().unwrap();
}

#[tokio::test]
async fn everybody_hears_of_a_panic_and_the_rules_can_be_removed() {
    let fake = Fake::new(USER_SPACE);
    let proxy = Arc::new(builder(&fake).start().unwrap());
    let (handle, mut reports) = (proxy.handle(), proxy.reports());
    list(&proxy);
    assert!(reports.recv().await.is_some());
    let is_healthy = || proxy.health().report(Instant::now()).healthy();
    assert!(is_healthy());
    fake.panics.store(true, SeqCst);
    proxy.apply(web(2)).unwrap();
    let waiting = Arc::clone(&proxy);
    let waiting = tokio::spawn(async move { waiting.ended().await });
    timeout(PATIENCE, async {
        proxy.ended().await;
        proxy.ended().await;
        waiting.await.unwrap();
        while reports.recv().await.is_some() {}
        assert_eq!(proxy.reports().recv().await, None);
    })
    .await
    .unwrap();
    assert!(!is_healthy());
    assert!(matches!(handle.set_localhost(false).await, Err(EngineError::Ended)));
    assert!(matches!(proxy.apply(web(3)), Err(EngineError::Ended)));
    Arc::into_inner(proxy).unwrap().clean_up().unwrap();
    assert_eq!(fake.clean_ups.load(SeqCst), 1);
}

/// Returns a handle of no proxy, and its inputs.
fn handle(profile: Profile, queue: usize) -> (Handle, Receiver<Input>) {
    let (inputs, received) = channel(queue);
    let mut asked = NodeConfig::new("node-1");
    asked.localhost_node_ports = true;
    let node = watch::Sender::new(Node::new(asked, &profile));
    let namespace = Namespace::start().unwrap();
    (
        Handle { inputs, profile, health: Arc::new(ProxyHealth::new(PATIENCE)), node, namespace },
        received,
    )
}

#[tokio::test]
async fn a_configuration_keeps_what_it_cannot_set() {
    let (handle, mut inputs) = handle(USER_SPACE, 8);
    let mut other = NodeConfig::new("node-2");
    other.masquerade_all = true;
    // An input like any other.
    handle.send(Input::Node(other.clone())).await.unwrap();
    handle.set_node(other).await.unwrap();
    handle.set_localhost(false).await.unwrap();
    drop(handle);
    let mut seen = Vec::new();
    while let Some(Input::Node(node)) = inputs.recv().await {
        seen.push((node.node_name, node.masquerade_all, node.localhost_node_ports));
    }
    assert_eq!(seen, [("node-1".to_owned(), true, true), ("node-1".to_owned(), true, false)]);
}

#[test]
fn a_sync_that_fails_is_logged() {
    let mut fake = Fake::new(USER_SPACE);
    let log = Arc::new(tempfile::tempfile().unwrap());
    fake.failure = Some(Arc::clone(&log));
    let proxy = builder(&fake).start().unwrap();
    list(&proxy);
    assert!(proxy.reports().blocking_recv().is_some(), "the next sync");
    let mut text = String::new();
    log.as_ref().rewind().unwrap();
    log.as_ref().read_to_string(&mut text).unwrap();
    assert!(text.contains("Sync failed; retrying") && text.contains("as asked"), "{text}");
}

/// Whoever served in the place of the cluster's proxy would remove the Services of that.
#[test]
fn a_proxy_has_a_name_if_it_stands_beside_another() {
    for is_beside in [false, true] {
        for name in [None, Some("pilot".to_owned())] {
            let is_named = name.is_some();
            let mut node = NodeConfig::new("node-1");
            node.service_proxy_name = name;
            let fake = Fake::new(Profile { is_beside, ..USER_SPACE });
            let started = Proxy::builder(node).backend(fake).addresses(false).start();
            if is_named != is_beside {
                let error = started.err().unwrap();
                assert!(matches!(error, StartError::Engine(EngineError::NotBeside)), "{error}");
                continue;
            }
            let handle = started.unwrap().handle();
            let node = handle.node.borrow();
            assert_eq!(node.asked.localhost_node_ports, !is_beside);
        }
    }
}

#[test]
fn localhost_is_left_out_where_nothing_serves_it() {
    let (handle, _) = handle(Profile::new(Mode::IPVS), 1);
    let node = handle.node.borrow();
    assert!(node.asked.localhost_node_ports && !node.used.localhost_node_ports);
}

/// A caller that gives up while the queue is full has changed nothing, and the next one is not
/// mistaken for it.
#[tokio::test]
async fn a_configuration_arrives_everywhere_or_nowhere() {
    let (handle, mut inputs) = handle(USER_SPACE, 1);
    handle.send(Input::Compare).await.unwrap();
    let mut node = NodeConfig::new("node-1");
    node.masquerade_all = true;
    let (mut timing, before) = (RunnerConfig::default(), format!("{:?}", handle.health));
    timing.longest_retry = PATIENCE * 9;
    {
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(handle.set_node(node.clone())).poll(&mut context).is_pending());
        assert!(pin!(handle.set_timing(timing)).poll(&mut context).is_pending());
    }
    assert!(!handle.node.borrow().asked.masquerade_all);
    assert_eq!(format!("{:?}", handle.health), before);
    assert!(matches!(inputs.recv().await, Some(Input::Compare)));
    handle.set_node(node).await.unwrap();
    assert!(matches!(inputs.recv().await, Some(Input::Node(node)) if node.masquerade_all));
    assert!(handle.node.borrow().asked.masquerade_all);
}

/// The sockets at `[::1]` have a thread, so that nothing waits for them.
#[cfg(feature = "userspace")]
#[test]
fn sockets_on_localhost_hold_up_nothing() {
    use std::{
        net::{TcpListener, TcpStream},
        sync::mpsc,
    };

    use crate::health::http::connections::Limits;

    let (go_on, held) = mpsc::channel::<()>();
    let (arrived, arrives) = mpsc::channel();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let proxy = builder(&Fake::new(Profile::new(Mode::NFTABLES)))
        .descriptors(1024)
        .on_ipv6_localhost(move |_, _| {
            let _ = arrived.send(());
            let _ = held.recv_timeout(PATIENCE);
        })
        .start()
        .unwrap();
    assert_eq!(proxy.connections().limits(), Limits::new(1024 - 128), "the sockets have a share");
    arrives.recv().unwrap();
    let checked = service("web", "10.0.0.1")
        .port("", "TCP", 80)
        .set("spec.type", "LoadBalancer")
        .set("spec.externalTrafficPolicy", "Local")
        .set("spec.healthCheckNodePort", port);
    proxy.replace(Kind::Service, [checked.object()]).unwrap();
    proxy.replace(Kind::EndpointSlice, []).unwrap();
    let is_served = || TcpStream::connect(("127.0.0.1", port)).is_ok();
    until("the health check node port is served", is_served);
    drop(go_on);
    proxy.stop().unwrap();
}
