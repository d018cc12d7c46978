//! What tests of whole syncs share: a node with a backend in a network namespace of its own, and
//! `nft` to look at it and to damage it.

#![allow(dead_code, reason = "not every test uses all")]

use std::{
    io::Write,
    process::{Command, Stdio},
    thread,
};

use backend_nft::{NftConfig, NftProxier, transport::TransportKind};
use proxy_core::{
    config::{LocalPodsConfig, NodeConfig},
    objects::Event,
    proxier::{Proxier, ProxierError, SyncReport},
    testing::{NODE, endpoint, service, slice},
    track::Tracker,
};

/// A node with a backend, in a namespace.
pub struct Node {
    pub tracker: Tracker,
    pub proxier: NftProxier,
    pub runtime: tokio::runtime::Runtime,
}

impl Node {
    pub fn new(config: NodeConfig) -> Self {
        Self {
            tracker: Tracker::new(config),
            proxier: open(),
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime"),
        }
    }

    pub fn apply(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            assert_eq!(self.tracker.apply(event), []);
        }
        assert_eq!(self.tracker.resolve(), []);
    }

    pub fn try_sync(&mut self) -> Result<SyncReport, ProxierError> {
        let sync = self.proxier.sync(self.tracker.state(), self.tracker.delta());
        let result = self.runtime.block_on(sync);
        match result {
            Ok(_) => drop(self.tracker.mark_synced()),
            Err(_) => self.tracker.request_full(),
        }
        result
    }

    pub fn sync(&mut self, events: impl IntoIterator<Item = Event>) -> SyncReport {
        self.apply(events);
        self.try_sync().expect("a sync")
    }

    /// The proxy is killed, and another one started that knows the same.
    pub fn restart(&mut self) -> SyncReport {
        self.proxier = open();
        self.tracker.request_full();
        self.try_sync().expect("a take-over")
    }

    pub fn cleanup(&mut self) {
        self.runtime.block_on(self.proxier.cleanup()).expect("a clean-up");
    }
}

fn open() -> NftProxier {
    let transport = TransportKind::Netlink.open().expect("netlink is there");
    NftProxier::new(NftConfig::default(), transport)
}

pub fn in_namespace(work: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(|| {
        // SAFETY: unshare takes no pointers; the namespace is this thread's alone.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "needs root: {}", std::io::Error::last_os_error());
        work();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs nft on `script`; returns what it prints.
pub fn nft(script: &str) -> String {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("nft is installed");
    child.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("nft reads");
    let output = child.wait_with_output().expect("nft ends");
    assert!(output.status.success(), "nft refuses {script}");
    String::from_utf8(output.stdout).expect("text")
}

/// Both tables, in this order whichever was made first.
pub fn ruleset() -> String {
    nft("list table ip kube-proxy") + &nft("list table ip6 kube-proxy")
}

pub fn config() -> NodeConfig {
    NodeConfig { local_pods: LocalPodsConfig::NodeCidr, ..NodeConfig::new(NODE) }
}

/// A Service `web` with three endpoints, one of them here.
pub fn web() -> Vec<Event> {
    vec![service("web", "10.96.0.1").port("http", "TCP", 80).apply(), web_slice(&[1, 2, 3])]
}

pub fn web_slice(last: &[u8]) -> Event {
    let mut made =
        slice("web", "a").set("ports", serde_json::json!([{"name": "http", "port": 80}]));
    for number in last {
        let on = if *number == 1 { NODE } else { "elsewhere" };
        made = made.endpoint(endpoint(&format!("10.244.0.{number}"), on));
    }
    made.apply()
}
