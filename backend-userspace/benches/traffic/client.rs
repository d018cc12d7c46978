//! The client's process: what one address of a Service or endpoint gives.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream, UdpSocket},
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::hosts::{self, BULK, CLIENTS, ECHO, SHORT, word};

/// The time that each measurement takes.
pub const TIME: Duration = Duration::from_millis(500);

/// The number of threads that connect at the same time.
const CONNECTING: usize = 8;

/// UDP: how many threads there are, sockets of each, and datagrams that a socket sends one after
/// the other, as QUIC does.
const SENDING: usize = 2;
const SOCKETS: usize = 32;
const BURST: usize = 16;

/// Is the process of the client.
pub fn run() {
    test_netns::enter_new_namespace();
    let mut idle = Vec::new();
    hosts::serve(|request, words| match request {
        "network" => {
            hosts::join("10.1.0.1", (0..CLIENTS).map(|number| hosts::client(number.into())));
            Vec::new()
        }
        "bulk" => vec![bulk(word(words), word(words))],
        "short" => short(word(words)).into(),
        "latency" => latency(word(words)).into(),
        "datagrams" => datagrams(word(words), 1, 100).into(),
        "bursts" => datagrams(word(words), BURST, 1200).into(),
        // So many connections, which stay idle; none ends those.
        "idle" => {
            let to = word(words);
            idle = (0..word(words)).map(|_| exchanged(to)).collect();
            Vec::new()
        }
        _ => panic!("no request is called {request}"),
    });
}

/// The bytes that come in a second by so many connections.
fn bulk(to: Ipv4Addr, connections: usize) -> f64 {
    let (over, bytes) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let receive = || {
            let mut stream = TcpStream::connect((to, BULK)).expect("connected");
            let mut buffer = vec![0; 256 * 1024];
            while !over.load(Ordering::Relaxed) {
                let length = stream.read(&mut buffer).expect("there is more");
                bytes.fetch_add(length, Ordering::Relaxed);
            }
        };
        (0..connections).for_each(|_| drop(scope.spawn(receive)));
        // Windows grow first.
        thread::sleep(TIME / 5);
        let (before, begun) = (bytes.load(Ordering::Relaxed), Instant::now());
        thread::sleep(TIME);
        let received = bytes.load(Ordering::Relaxed) - before;
        over.store(true, Ordering::Relaxed);
        received as f64 / begun.elapsed().as_secs_f64()
    })
}

/// The connections that in a second are made, each for one byte and its answer, and the time that
/// each takes here.
fn short(to: Ipv4Addr) -> [f64; 2] {
    let begun = Instant::now();
    let count = || {
        let mut count = 0;
        while begun.elapsed() < TIME {
            let mut stream = TcpStream::connect((to, SHORT)).expect("connected");
            stream.write_all(b"x").expect("sent");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).expect("an answer");
            assert_eq!(answer, b"x");
            count += 1;
        }
        count
    };
    counted(CONNECTING, begun, count)
}

/// The number that threads count in a second, and the time of threads for each.
fn counted(threads: usize, begun: Instant, count: impl Fn() -> usize + Sync) -> [f64; 2] {
    let timed = || [count() as f64, hosts::time(Path::new("/proc/thread-self"))];
    let [count, time] = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(timed)).collect();
        let counts = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        counts.fold([0.0; 2], |sum, of_thread| [0, 1].map(|i| sum[i] + of_thread[i]))
    });
    [count / begun.elapsed().as_secs_f64(), time / count]
}

/// The time that an answer takes, by one connection, in seconds: the median and the 99th
/// percentile.
fn latency(to: Ipv4Addr) -> [f64; 2] {
    let mut stream = exchanged(to);
    let begun = Instant::now();
    let mut times = Vec::new();
    while begun.elapsed() < TIME {
        let sent = Instant::now();
        exchange(&mut stream);
        times.push(sent.elapsed());
    }
    percentiles(times)
}

/// A connection that has an endpoint.
fn exchanged(to: Ipv4Addr) -> TcpStream {
    let mut stream = TcpStream::connect((to, ECHO)).expect("connected");
    stream.set_nodelay(true).expect("an option");
    exchange(&mut stream);
    stream
}

fn exchange(stream: &mut TcpStream) {
    stream.write_all(&[7; 64]).expect("sent");
    stream.read_exact(&mut [0; 64]).expect("an answer");
}

/// The number of datagrams a second that are answered, and the time that each takes here. Each
/// thread sends so many of this size by each of its sockets, and then waits for all answers.
fn datagrams(to: Ipv4Addr, burst: usize, size: usize) -> [f64; 2] {
    let begun = Instant::now();
    let exchange = || {
        let socket = || {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
            socket.connect((to, ECHO)).expect("a route");
            socket.set_read_timeout(Some(Duration::from_millis(100))).expect("an option");
            socket
        };
        let sockets: Vec<UdpSocket> = (0..SOCKETS).map(|_| socket()).collect();
        let (datagram, mut buffer) = (vec![7; size], vec![0; 2048]);
        let mut answers = 0;
        while begun.elapsed() < TIME {
            for socket in &sockets {
                for _ in 0..burst {
                    socket.send(&datagram).expect("sent");
                }
            }
            for socket in &sockets {
                answers += (0..burst).take_while(|_| socket.recv(&mut buffer).is_ok()).count();
            }
        }
        answers
    };
    counted(SENDING, begun, exchange)
}

/// The median and the 99th percentile, in seconds.
fn percentiles(mut times: Vec<Duration>) -> [f64; 2] {
    times.sort_unstable();
    [50, 99].map(|percent| {
        times.get(times.len() * percent / 100).map_or(f64::NAN, Duration::as_secs_f64)
    })
}
