//! The feed of the local socket: what is programmed, and by whom it was changed.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
};

use serde_json::{Value, json};
use switchyard_core::testing::check_schema;

use crate::{
    manifests::{Manifests, NODE, service, slice},
    namespace::Namespace,
};

struct Feed(BufReader<UnixStream>);

impl Feed {
    fn new(path: &str) -> Self {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(packet_rig::wait::PATIENCE)).unwrap();
        stream.write_all(b"\"watch\"\n").unwrap();
        Self(BufReader::new(stream))
    }

    /// Reads lines up to one that is `wanted`, which is returned by its content.
    #[track_caller]
    fn find(&mut self, kind: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut line = String::new();
        loop {
            line.clear();
            self.0.read_line(&mut line).unwrap();
            let line: Value = serde_json::from_str(&line).unwrap();
            check_schema("feed", &line);
            match line.get(kind) {
                Some(content) if wanted(content) => return content.clone(),
                _ => {}
            }
        }
    }
}

#[test]
fn a_feed_shows_what_is_programmed_and_who_changes_it() {
    let namespace = Namespace::new();
    let web = service(
        "web",
        "type: LoadBalancer, clusterIP: 10.96.0.10, externalTrafficPolicy: Local, \
         loadBalancerSourceRanges: [198.51.100.0/24], sessionAffinity: ClientIP, \
         ports: [{port: 80, protocol: TCP, nodePort: 30080}]",
    );
    let ready = slice("web", "8080, protocol: TCP", "{addresses: [10.0.0.5], nodeName: node-1}");
    let manifests = Manifests::new(&format!("{NODE}{web}{ready}"));
    let flag = manifests.local_socket();
    let program = manifests.serve(&namespace, &["--proxy-mode=nftables", &flag]);

    let mut feed = Feed::new(flag.trim_start_matches("--local-socket="));
    assert_eq!(feed.find("feed", |_| true)["node"], "node-1");
    let set = feed.find("set", |_| true);
    assert_eq!(set["id"]["name"]["service"], json!({"namespace": "shop", "name": "web"}));
    assert_eq!(set["cluster"][0]["address"], "10.0.0.5:8080");
    assert_eq!(set["frontends"][0]["at"], json!({"clusterIp": "10.96.0.10"}));
    assert_eq!(feed.find("synced", |_| true), json!({"servicePorts": 1}));

    let map = ["flush", "map", "ip", "kube-proxy", "service-ips"];
    namespace.0.output("nft", &map, "").unwrap();
    let drift = feed.find("drift", |_| true);
    assert!(drift["by"].as_str().unwrap().contains("nft"), "{drift}");
    let repaired = feed.find("sync", |sync| sync["repaired"] != 0);
    assert!(repaired["repairs"][0].as_str().unwrap().contains("service-ips"), "{repaired}");
    program.terminate();
}
