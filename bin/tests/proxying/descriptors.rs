//! The limit of file descriptors, and clients that hold as many connections as they can.

use std::{fs, net::SocketAddr, process::Command, time::Duration};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    runtime,
    time::timeout,
};

use crate::{
    manifests::{Manifests, service},
    namespace::{HEALTH, METRICS, Namespace, Program},
};

/// Returns the command that starts the program with these limits.
fn limited(
    namespace: &Namespace,
    nofile: &str,
    manifests: &Manifests,
    arguments: &[&str],
) -> Command {
    let mut command = namespace.0.command("prlimit");
    command.arg(format!("--nofile={nofile}")).arg(env!("CARGO_BIN_EXE_switchyard"));
    command.args(manifests.arguments()).arg("-v=2").args(arguments);
    command
}

#[test]
fn the_limit_is_raised() {
    let namespace = Namespace::new();
    let manifests = Manifests::new("");
    let program = Program::spawn(limited(&namespace, "256:4096", &manifests, &[]));
    let metrics = namespace.wait(METRICS, "/metrics", |status, _| status == 200);
    assert!(metrics.contains("\nprocess_max_fds 4096\n"), "{metrics}");
    let limits = fs::read_to_string(format!("/proc/{}/limits", program.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words, ["Max", "open", "files", "4096", "4096", "files"]);
    let (_, log) = program.terminate();
    let line = "\"Raised RLIMIT_NOFILE\" from=\"256\" to=\"4096\"";
    assert!(log.contains(line), "{log}");
}

/// The server of the health of Service 1.
const SERVICE: &str = "192.0.2.1:32001";

/// Service `number` for load balancers, whose health is served at port 32000 + `number`.
fn of_number(number: u16) -> String {
    let (health, node_port) = (32000 + number, 31000 + number);
    let spec = format!(
        "type: LoadBalancer, clusterIP: 10.96.0.{number}, externalTrafficPolicy: Local, \
         healthCheckNodePort: {health}, ports: [{{port: 80, protocol: TCP, nodePort: {node_port}}}]"
    );
    service(&format!("s{number}"), &spec)
}

async fn connect(from: &str, to: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
    let connected = socket.connect(to.parse().unwrap());
    timeout(Duration::from_secs(20), connected).await.expect("no connection").unwrap()
}

/// Sends a request and returns the first line of the answer.
async fn ask(stream: &mut TcpStream) -> String {
    let mut answer = [0; 1000];
    let exchange = async {
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await?;
        stream.read(&mut answer).await
    };
    let length = timeout(Duration::from_secs(20), exchange).await.expect("no answer").unwrap();
    let answer = String::from_utf8_lossy(&answer[..length]);
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn held_connections_keep_nobody_out() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let namespace = Namespace::new();
    let addresses = "addr add 192.0.2.2/32 dev lo\naddr add 192.0.2.3/32 dev lo";
    namespace.0.ip(addresses).unwrap();
    let manifests = Manifests::new(&(1..=50).map(of_number).collect::<String>());
    let arguments = ["--metrics-bind-address=0.0.0.0", "--nodeport-addresses=192.0.2.1/32"];
    let program = Program::spawn(limited(&namespace, "256:256", &manifests, &arguments));
    namespace.wait_for_service_ports(50);
    namespace.wait(HEALTH, "/livez", |status, _| status == 200);
    namespace.wait(SERVICE, "/", |status, _| status == 503);

    let clients = || async {
        let mut held = Vec::new();
        for server in ["192.0.2.1:10256", "192.0.2.1:10249", SERVICE] {
            for number in 0..900 {
                let mut stream = connect("192.0.2.2", server).await;
                if number % 3 == 0 {
                    assert!(ask(&mut stream).await.starts_with("HTTP/1.1 "));
                }
                held.push(stream);
            }
            // Another pod, the kubelet, the client itself, and a program of the node. In nftables
            // mode, no node port is served on loopback addresses.
            let loopback = server.replace("192.0.2.1", "127.0.0.1");
            let last =
                if server == SERVICE { ("192.0.2.3", SERVICE) } else { ("127.0.0.1", &*loopback) };
            for (from, to) in
                [("192.0.2.3", server), ("192.0.2.1", server), ("192.0.2.2", server), last]
            {
                for _ in 0..10 {
                    let answer = ask(&mut connect(from, to).await).await;
                    assert!(answer.starts_with("HTTP/1.1 "), "{from} to {to}: {answer:?}");
                }
            }
        }
        // The program has descriptors for everything else.
        let open = fs::read_dir(format!("/proc/{}/fd", program.id())).unwrap().count();
        assert!(open < 256 - 64, "{open} file descriptors are open");
    };
    let clients = || {
        runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(clients());
    };
    namespace.0.run(clients).unwrap();
    let (_, log) = program.terminate();
    assert!(!log.contains("Too many open files"), "{log}");
    // There are descriptors for some of the servers, beside those of sockets at `[::1]`.
    let refused = "err=\"the limit of file descriptors allows no more servers\"";
    assert_eq!(log.matches(refused).count(), 50 - 24, "{log}");
}
