//! A client feeds the program over its socket for objects.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    process::Command,
    time::Duration,
};

use packet_rig::http::metric_values;
use serde_json::{Value, json};
use switchyard_core::testing::check_schema;
use tempfile::TempDir;

use crate::namespace::{HEALTH, METRICS, Namespace, Program, until};

const SERVICE: &str = "10.96.0.10:80";
const NODE_FLAG: &str = "--hostname-override=node-1";

pub(crate) struct Client(BufReader<UnixStream>);

impl Client {
    /// Connects as soon as there is a socket without a client.
    pub(crate) fn new(path: &Path) -> Self {
        let mut connected = None;
        until("the client is welcome", || {
            let Ok(stream) = UnixStream::connect(path) else { return false };
            stream.set_read_timeout(Some(packet_rig::wait::PATIENCE)).unwrap();
            let mut client = Self(BufReader::new(stream));
            let is_welcome = client.receive()["hello"]["node"] == "node-1";
            connected = Some(client);
            is_welcome
        });
        connected.unwrap()
    }

    pub(crate) fn send(&mut self, line: &Value) {
        check_schema("objects", line);
        writeln!(self.0.get_mut(), "{line}").unwrap();
    }

    fn send_all(&mut self, lines: &[Value]) {
        lines.iter().for_each(|line| self.send(line));
    }

    pub(crate) fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let line = serde_json::from_str(&line).unwrap();
        check_schema("objects", &line);
        line
    }
}

/// A Service of the namespace `shop`.
pub(crate) fn service() -> Value {
    json!({"apply": {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 80, "protocol": "TCP"}]},
    }})
}

pub(crate) fn slice() -> Value {
    json!({"apply": {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["192.0.2.1"]}],
    }})
}

#[test]
fn a_client_feeds_services_and_may_die() {
    let namespace = Namespace::new();
    namespace.0.ip("route add 10.96.0.0/16 dev lo").unwrap();
    let _endpoint = namespace.0.run(|| TcpListener::bind("192.0.2.1:8080")).unwrap().unwrap();
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("objects.sock");
    let flag = format!("--objects-socket={}", socket.display());
    let address: SocketAddr = SERVICE.parse().unwrap();
    let connects = || {
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok();
        namespace.0.run(connect).unwrap()
    };
    let program = Program::start(&namespace, &["--proxy-mode=nftables", NODE_FLAG, &flag]);

    let mut client = Client::new(&socket);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    client.send_all(&[json!("list"), service(), slice(), json!({"confirm": 1})]);
    assert_eq!(client.receive(), json!({"confirmed": 1}));
    assert_eq!(namespace.get(HEALTH, "/readyz").unwrap().0, 503, "the list has no end yet");
    assert!(!connects());
    let status = || namespace.get(METRICS, "/status").unwrap().1;
    assert!(status().contains("wrong: no client of --objects-socket has ended a list"));
    client.send(&json!("synced"));
    assert_eq!(client.receive(), json!({"synced": {"objects": 2, "isWhole": true}}));
    until("the Service serves", connects);
    let state = |state: &str| {
        let (_, text) = namespace.get(METRICS, "/metrics").unwrap();
        metric_values(&text, &format!("switchyard_objects_client{{state=\"{state}\"}}"))
    };
    assert_eq!([state("connected"), state("synced")], [[1.0], [1.0]]);

    // Its process is gone in the middle of a list.
    client.send(&json!("list"));
    drop(client);
    until("the client is missed", || state("connected") == [0.0]);
    assert!(status().contains("gone, list complete"), "{}", status());
    let mut client = Client::new(&socket);
    assert!(connects());
    assert_eq!([state("connected"), state("synced")], [[1.0], [1.0]]);
    client.send(&json!({"confirm": 2}));
    assert_eq!(client.receive(), json!({"confirmed": 2}));
    assert!(connects());

    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}});
    client.send_all(&[json!("list"), json!({"node": node}), json!("synced")]);
    assert_eq!(client.receive(), json!({"synced": {"objects": 1, "isWhole": true}}));
    until("the Service is gone", || !connects());
    let rules = || namespace.list("table ip kube-proxy");
    until("its rules are gone", || !rules().contains("10.96.0.10"));

    // A single change.
    client.send_all(&[service(), slice()]);
    until("the Service serves again", connects);
    client.send(&json!({"delete": {"kind": "Service", "namespace": "shop", "name": "web"}}));
    until("the Service is gone again", || !rules().contains("10.96.0.10"));
    program.terminate();
}

#[test]
fn a_socket_that_cannot_be_opened_is_an_error() {
    let namespace = Namespace::new();
    let bad = Program::start(&namespace, &[NODE_FLAG, "--objects-socket=/nowhere/objects.sock"]);
    let (status, log) = bad.ended();
    assert_eq!(status.code(), Some(1));
    assert!(log.contains("cannot open the socket /nowhere/objects.sock"), "{log}");
}

#[test]
fn a_client_in_go_feeds_services() {
    if Command::new("go").arg("version").output().is_err() {
        packet_rig::skipped("go is not installed");
        return;
    }
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name);
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(path("client")).arg(".");
    build.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/go"));
    build.env("GOCACHE", path("cache")).env("GOPROXY", "off").env("GOTOOLCHAIN", "local");
    let built = build.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    let namespace = Namespace::new();
    let flag = format!("--objects-socket={}", path("socket").display());
    let program = Program::start(&namespace, &["--proxy-mode=nftables", NODE_FLAG, &flag]);
    // The socket may not be there yet, and the client before may not be gone.
    let feed = |files: &[&str]| {
        let mut ended = (false, String::new());
        until("the client is welcome", || {
            let mut client = Command::new(path("client"));
            client.arg(path("socket")).args(files.iter().map(|file| path(file)));
            let output = client.output().unwrap();
            let text = [output.stdout, output.stderr].concat();
            ended = (output.status.success(), String::from_utf8(text).unwrap());
            ended.1.starts_with("node node-1\n")
        });
        ended
    };
    for (name, object) in [("service", service()), ("slice", slice())] {
        fs::write(path(name), format!("{:#}", object["apply"])).unwrap();
    }
    fs::write(path("broken"), r#"{"apiVersion": "v1", "kind": "Service"}"#).unwrap();
    let fed = feed(&["service", "slice"]);
    assert_eq!(fed, (true, "node node-1\nobjects 2\n".to_owned()));
    let rules = || namespace.list("table ip kube-proxy");
    until("the Service is programmed", || rules().contains("192.0.2.1"));
    for (file, reason) in
        [("broken", "line 2: : metadata.name: "), ("missing", "missing: no such file or directory")]
    {
        let (succeeds, text) = feed(&[file]);
        assert!(!succeeds && text.contains(reason), "{text}");
    }
    assert!(rules().contains("192.0.2.1"), "no list has ended, or with nothing that could be read");
    assert_eq!(feed(&[]), (true, "node node-1\nobjects 0\n".to_owned()));
    until("the Service is gone", || !rules().contains("192.0.2.1"));
    program.terminate();
}
