//! Connections that stay open all the time, with a request now and then.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use packet_rig::Answer;

use crate::error::{DemoError, Result};

/// The pause between two requests.
const INTERVAL: Duration = Duration::from_millis(20);
/// The longest time without an answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Open connections.
pub struct Held {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<(u64, bool)>>,
}

impl Held {
    /// Opens `count` connections to `target`.
    pub fn open(target: SocketAddr, count: usize) -> Result<Self> {
        let mut held = Self { over: Arc::default(), threads: Vec::new() };
        for _ in 0..count {
            let stream = TcpStream::connect_timeout(&target, TIMEOUT)
                .map_err(DemoError::io("open a connection to web"))?;
            let over = Arc::clone(&held.over);
            held.threads.push(thread::spawn(move || converse(&stream, &over)));
        }
        Ok(held)
    }

    /// Closes the connections, and returns the number of answers, and of connections that broke.
    pub fn finish(mut self) -> (u64, u64) {
        self.over.store(true, Ordering::Relaxed);
        let ends = self.threads.drain(..).map(|thread| thread.join().unwrap_or((0, false)));
        ends.fold((0, 0), |(answers, broken), (more, is_whole)| {
            (answers + more, broken + u64::from(!is_whole))
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Makes requests until the demo is over; returns the number of answers, and whether the connection lasted
/// and stayed at one endpoint.
fn converse(mut stream: &TcpStream, over: &AtomicBool) -> (u64, bool) {
    let mut answers = 0;
    let mut home = None;
    let mut reader = BufReader::new(stream);
    let set = stream.set_read_timeout(Some(TIMEOUT)).and_then(|()| stream.set_nodelay(true));
    if set.is_err() {
        return (0, false);
    }
    while !over.load(Ordering::Relaxed) {
        let mut line = String::new();
        let asked = stream.write_all(b"who\n").and_then(|()| reader.read_line(&mut line));
        let Some(answer) = asked.ok().and_then(|_| Answer::parse(&line)) else {
            return (answers, false);
        };
        if *home.get_or_insert_with(|| answer.endpoint.clone()) != answer.endpoint {
            return (answers, false);
        }
        answers += 1;
        thread::sleep(INTERVAL);
    }
    (answers, true)
}
