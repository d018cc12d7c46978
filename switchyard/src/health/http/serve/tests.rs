//! Clients of a server, well-behaved and others.

use std::{
    net::{Ipv4Addr, SocketAddr},
    ops::ControlFlow,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
    task::JoinHandle,
};

use super::*;
use crate::health::http::{connections::Limits, listen};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
/// Longer than anything takes.
const LONG: Duration = Duration::from_secs(30);

struct Echo;

impl Handler for Echo {
    fn answer(&self, request: &Request<Bytes>) -> Answer {
        let path = request.uri().path().as_bytes();
        answer(StatusCode::OK, PLAIN_TEXT, [path, request.body()].concat())
    }
}

/// A handler with answers that no buffer of the kernel holds.
struct Large;

impl Handler for Large {
    fn answer(&self, _: &Request<Bytes>) -> Answer {
        answer(StatusCode::OK, PLAIN_TEXT, vec![b'x'; 32 << 20])
    }
}

struct Server {
    port: u16,
    connections: Arc<Connections>,
    task: JoinHandle<Infallible>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    fn new(handler: impl Handler) -> Self {
        Self::with_patience(handler, Patience::USUAL)
    }

    fn with_patience(handler: impl Handler, patience: Patience) -> Self {
        let limits = Limits { connections: 4096, service_health_servers: 1 };
        let connections = Connections::new(limits);
        let listener = listen::bind("0.0.0.0:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let theirs = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            accept_patiently("test", listener, Arc::new(handler), theirs, patience).await
        });
        Self { port, connections, task }
    }

    /// Returns a connection from this address of the host.
    async fn connect(&self, from: [u8; 4]) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))).await.unwrap()
    }

    /// Returns the answer to a request on its own connection.
    async fn ask(&self, from: [u8; 4], request: &str) -> String {
        exchange(self.connect(from).await, request).await
    }

    /// Waits until all connections are closed.
    async fn wait_for_no_connection(&self) {
        let closed = async {
            while self.connections.count() > 0 {
                time::sleep(Duration::from_millis(10)).await;
            }
        };
        time::timeout(LONG, closed).await.expect("a connection is still open");
    }

    /// Asks much, takes nothing, and waits until the server ends the connection.
    async fn ends_a_client_that_does_not_read(&self) {
        let mut stream = self.connect(ONE).await;
        stream.write_all(&GET.repeat(50)).await.unwrap();
        while self.connections.count() == 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        self.wait_for_no_connection().await;
    }
}

async fn exchange(mut stream: TcpStream, request: &str) -> String {
    let mut text = String::new();
    let exchange = async {
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.read_to_string(&mut text).await.unwrap();
    };
    time::timeout(LONG, exchange).await.expect("there is no answer");
    text
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
}

fn put(body: &str) -> String {
    let length = body.len();
    let head = "PUT / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length:";
    format!("{head} {length}\r\n\r\n{body}")
}

/// Sends a request and reads the answer. Breaks if the server ends the connection.
async fn ask_again(stream: &mut TcpStream) -> ControlFlow<(), String> {
    let mut answer = [0; 1000];
    if stream.write_all(GET).await.is_err() {
        return ControlFlow::Break(());
    }
    match time::timeout(LONG, stream.read(&mut answer)).await.expect("there is no answer") {
        Ok(0) | Err(_) => ControlFlow::Break(()),
        Ok(length) => ControlFlow::Continue(String::from_utf8_lossy(&answer[..length]).into()),
    }
}

/// Lets the process have as many file descriptors as it can.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

const ONE: [u8; 4] = [127, 0, 0, 1];
const OTHER: [u8; 4] = [127, 0, 0, 2];

#[tokio::test]
async fn short_bodies_are_read() {
    let server = Server::new(Echo);
    assert!(server.ask(ONE, &put("body")).await.ends_with("\r\n\r\n/body"));
    let answer = server.ask(ONE, &put(&"x".repeat(LONGEST_BODY + 1))).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[tokio::test]
async fn long_heads_are_rejected() {
    let server = Server::new(Echo);
    let mut stream = server.connect(ONE).await;
    let head = format!("GET / HTTP/1.1\r\nHost: {}", "x".repeat(2 * LONGEST_HEAD));
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(head.as_bytes()).await;
    server.wait_for_no_connection().await;
}

#[tokio::test]
async fn held_connections_keep_nobody_out() {
    raise_limit();
    let server = Server::new(Echo);
    let mut held = Vec::new();
    for number in 0..900 {
        let mut stream = server.connect(ONE).await;
        if number % 2 == 0 {
            assert!(ask_again(&mut stream).await.is_continue());
        }
        held.push(stream);
    }
    for client in [OTHER, ONE] {
        for _ in 0..10 {
            let answer = server.ask(client, &get("/")).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        }
    }
    // The newest connections are still open, and the oldest are closed.
    assert!(ask_again(&mut held[898]).await.is_continue());
    assert!(ask_again(&mut held[0]).await.is_break());
    drop(held);
    server.wait_for_no_connection().await;
}

#[tokio::test]
async fn clients_that_do_not_read_are_disconnected() {
    let patience = Patience { write: Duration::from_millis(200), ..Patience::USUAL };
    let server = Server::with_patience(Large, patience);
    server.ends_a_client_that_does_not_read().await;
    // A client that reads gets the whole answer.
    assert!(server.ask(ONE, &get("/")).await.len() > 32 << 20);
}

#[tokio::test]
async fn old_connections_end_with_an_answer() {
    let patience = Patience { lifetime: Duration::from_millis(200), ..Patience::USUAL };
    let server = Server::with_patience(Echo, patience);
    let mut stream = server.connect(ONE).await;
    let last = async {
        loop {
            let answer = ask_again(&mut stream).await.continue_value().expect("without notice");
            if answer.contains("\r\nConnection: close\r\n") {
                return answer;
            }
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    let answer = time::timeout(LONG, last).await.expect("the connection stays open");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    server.wait_for_no_connection().await;
}

#[tokio::test]
async fn old_connections_end_in_any_case() {
    let short = Duration::from_millis(200);
    let patience = Patience { request: short, lifetime: short, ..Patience::USUAL };
    let server = Server::with_patience(Large, Patience { write: 10 * LONG, ..patience });
    server.ends_a_client_that_does_not_read().await;
}
