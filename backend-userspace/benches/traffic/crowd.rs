//! Many clients at the same time: connections that exchange a message every second, and datagrams.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::hosts::{self, ECHO};

/// How many connections are being made at a time.
const CONNECTING: usize = 64;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many clients send datagrams, which have this size.
const FLOWS: usize = 64;
const SIZE: usize = 100;

/// How often datagrams are sent, and how many at once at most.
const BURST: Duration = Duration::from_micros(500);
const AT_ONCE: usize = 500;

/// Connections.
pub struct Crowd {
    runtime: Runtime,
    streams: Vec<TcpStream>,
    /// How many could not be made.
    pub missing: usize,
}

/// What a load gave; all numbers are exact.
struct Answered {
    errors: usize,
    times: Vec<Duration>,
}

impl Crowd {
    /// Makes so many connections to each of so many Services, by turns from each of the client's addresses.
    pub fn connect(services: usize, each: usize) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (mut streams, mut missing) = (Vec::new(), 0);
        runtime.block_on(async {
            let mut connecting = JoinSet::new();
            for number in 0..services * each {
                let from = hosts::client(number / services);
                connecting.spawn(connect(from, hosts::service(number % services)));
                while connecting.len() >= CONNECTING || number + 1 == services * each {
                    match connecting.join_next().await {
                        Some(made) => match made.expect("no panic") {
                            Ok(stream) => streams.push(stream),
                            Err(_) => missing += 1,
                        },
                        None => break,
                    }
                }
            }
        });
        Self { runtime, streams, missing }
    }

    /// Has each connection exchange a message every second, for so many seconds, and sends so many
    /// datagrams a second to a Service meanwhile. Returns, of messages and then of datagrams, how many were
    /// sent, how many got no answer, and the median and the 99th percentile of the time to an answer.
    pub fn load(self, seconds: f64, service: usize, rate: f64) -> [f64; 8] {
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        let sending = thread::spawn(move || datagrams(until, hosts::service(service), rate));
        let messages = self.runtime.block_on(async {
            let count = self.streams.len() as u32;
            let mut talking = JoinSet::new();
            for (number, stream) in (0..).zip(self.streams) {
                let first = Duration::from_secs(1) * number / count;
                talking.spawn(talk(stream, first, until));
            }
            let mut all = Answered { errors: 0, times: Vec::new() };
            while let Some(talked) = talking.join_next().await {
                let Answered { errors, times } = talked.expect("no panic");
                all.errors += errors;
                all.times.extend(times);
            }
            all
        });
        let datagrams = sending.join().expect("no panic");
        let [a, b] = [messages, datagrams].map(|Answered { errors, times }| {
            let [median, worst] = percentiles(times.clone());
            [(times.len() + errors) as f64, errors as f64, median, worst]
        });
        [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
    }
}

async fn connect(from: Ipv4Addr, to: Ipv4Addr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    socket.set_nodelay(true)?;
    let mut stream = socket.connect(SocketAddr::from((to, ECHO))).await?;
    exchange(&mut stream).await?;
    Ok(stream)
}

async fn exchange(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(&[7; 64]).await?;
    timeout(PATIENCE, stream.read_exact(&mut [0; 64])).await??;
    Ok(())
}

/// Exchanges a message every second. A connection that has failed counts once.
async fn talk(mut stream: TcpStream, first: Duration, until: Instant) -> Answered {
    let mut answered = Answered { errors: 0, times: Vec::new() };
    sleep(first).await;
    while Instant::now() < until {
        let sent = Instant::now();
        if exchange(&mut stream).await.is_err() {
            answered.errors += 1;
            break;
        }
        answered.times.push(sent.elapsed());
        sleep(Duration::from_secs(1)).await;
    }
    answered
}

/// Sends datagrams at a rate, whether they are answered or not. When this thread cannot keep up, fewer are
/// sent.
fn datagrams(until: Instant, to: Ipv4Addr, rate: f64) -> Answered {
    let begun = Instant::now();
    let sockets: Vec<UdpSocket> = (0..FLOWS)
        .map(|number| {
            let from = SocketAddr::from((hosts::client(number), 0));
            let socket = UdpSocket::bind(from).expect("a port");
            socket.connect(SocketAddr::from((to, ECHO))).expect("a route");
            socket.set_nonblocking(true).expect("an option");
            socket
        })
        .collect();
    let receiving: Vec<_> =
        sockets.iter().map(|socket| socket.try_clone().expect("a descriptor")).collect();
    let late = until + Duration::from_secs(1);
    let receiving = thread::spawn(move || receive_all(receiving, begun, late));
    let (mut sent, mut left_out) = (0, 0);
    while Instant::now() < until {
        thread::sleep(BURST);
        let due = (begun.elapsed().as_secs_f64() * rate) as usize - left_out;
        left_out += (due - sent).saturating_sub(AT_ONCE);
        for _ in 0..(due - sent).min(AT_ONCE) {
            let mut datagram = [0; SIZE];
            let now = begun.elapsed().as_nanos() as u64;
            datagram[..8].copy_from_slice(&now.to_ne_bytes());
            // One that does not fit is lost.
            let _ = sockets[sent % FLOWS].send(&datagram);
            sent += 1;
        }
    }
    let times = receiving.join().expect("no panic");
    Answered { errors: sent - times.len(), times }
}

/// Receives answers until it is late. Returns how long each took.
fn receive_all(sockets: Vec<UdpSocket>, begun: Instant, until: Instant) -> Vec<Duration> {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut receiving = JoinSet::new();
        for socket in sockets {
            let socket = tokio::net::UdpSocket::from_std(socket).expect("a socket");
            receiving.spawn(receive(socket, begun, until));
        }
        let mut times = Vec::new();
        while let Some(received) = receiving.join_next().await {
            times.extend(received.expect("no panic"));
        }
        times
    })
}

/// Receives answers until it is late. Returns how long each took.
async fn receive(socket: tokio::net::UdpSocket, begun: Instant, until: Instant) -> Vec<Duration> {
    let mut times = Vec::new();
    while let Some(left) = until.checked_duration_since(Instant::now())
        && let Ok(ready) = timeout(left, socket.readable()).await
    {
        ready.expect("the socket is open");
        let mut datagram = [0; SIZE];
        while let Ok(SIZE) = socket.try_recv(&mut datagram) {
            let sent = Duration::from_nanos(u64::from_ne_bytes(
                *datagram.first_chunk().expect("a datagram is longer"),
            ));
            times.push(begun.elapsed() - sent);
        }
    }
    times
}

/// The median and the 99th percentile, in seconds.
pub fn percentiles(mut times: Vec<Duration>) -> [f64; 2] {
    times.sort_unstable();
    [50, 99].map(|percent| {
        times.get(times.len() * percent / 100).map_or(f64::NAN, Duration::as_secs_f64)
    })
}
