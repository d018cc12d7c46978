//! Clients: threads that make one real connection after the other, and connections that stay open.

use std::{
    net::IpAddr,
    sync::{
        Arc, PoisonError, RwLock, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use packet_rig::{NetNs, Outcome, Probe, RigError, Target};

use super::{Result, board::Board, cast::WEB};

/// The time without an answer after which a connection has failed. A SYN that was lost, or refused
/// while the kernel was still busy sending it, is repeated after a second.
const TIMEOUT: Duration = Duration::from_millis(2500);
/// The time to wait for clients that are in the middle of a connection.
const PATIENCE: Duration = Duration::from_millis(200);
/// The connections to `web` that stay open all the time, and the pause between two requests.
pub const HELD: u64 = 4;
const INTERVAL: Duration = Duration::from_millis(20);

/// Where a client is: in a network namespace, or at an address of this machine. IPv6 clients have
/// the one loopback address there is.
#[derive(Clone)]
pub enum Origin {
    Namespace(NetNs),
    Address(IpAddr),
}

/// Running traffic. Dropping it stops it.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    /// Held for reading while a connection is opened.
    gate: Arc<RwLock<()>>,
    clients: Vec<JoinHandle<Result<(), RigError>>>,
}

/// One client.
#[derive(Clone)]
struct Client {
    role: usize,
    pause: Duration,
    name: &'static str,
    origin: Origin,
    targets: Vec<Target>,
    board: Arc<Board>,
    stop: Arc<AtomicBool>,
    gate: Arc<RwLock<()>>,
}

impl Traffic {
    /// Starts the clients of every Service, which use the Service's targets in turn.
    pub fn start(
        targets: &[Vec<Target>],
        origin: impl Fn(&str) -> Result<Origin>,
        board: &Arc<Board>,
    ) -> Result<Self> {
        let mut traffic = Self { stop: Arc::default(), gate: Arc::default(), clients: Vec::new() };
        let show = board.state().show;
        for ((role, cast), targets) in show.roles().iter().enumerate().zip(targets) {
            for place in cast.places {
                let client = Client {
                    role,
                    pause: Duration::from_micros(cast.pause),
                    name: place,
                    origin: origin(place)?,
                    targets: targets.clone(),
                    board: Arc::clone(board),
                    stop: Arc::clone(&traffic.stop),
                    gate: Arc::clone(&traffic.gate),
                };
                let held = if role == WEB && *place == cast.places[0] { HELD } else { 0 };
                (0..held).for_each(|_| traffic.run(&client, Client::hold));
                (0..cast.workers).for_each(|_| traffic.run(&client, Client::connect_in_turn));
            }
        }
        Ok(traffic)
    }

    fn run(&mut self, client: &Client, work: fn(&Client)) {
        let client = client.clone();
        self.clients.push(thread::spawn(move || match &client.origin {
            Origin::Namespace(namespace) => namespace.run(|| work(&client)),
            Origin::Address(_) => {
                work(&client);
                Ok(())
            }
        }));
    }

    /// Lets the connections that have begun end, and none begin until the guard is dropped.
    pub fn pause(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the traffic; an error if a client stopped working before.
    pub fn finish(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + PATIENCE;
        for client in self.clients.drain(..) {
            while !client.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            // The others wait for a refusal or an answer; they end with the process.
            if client.is_finished() {
                client.join().map_err(|_| "a client's thread panicked")??;
            }
        }
        Ok(())
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Client {
    fn probe(&self, target: Target) -> Probe {
        let source = match self.origin {
            Origin::Address(address) if address.is_ipv4() == target.address.is_ipv4() => {
                Some(address)
            }
            _ => None,
        };
        // Thousands of connections to one address would use up the ports if each kept its own for a
        // minute.
        Probe { timeout: TIMEOUT, source, resets: true, ..Probe::new(target) }
    }

    fn connect_in_turn(&self) {
        for (frontend, target) in self.targets.iter().enumerate().cycle() {
            let gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            let opened = Instant::now();
            let outcome = self.probe(*target).attempt();
            drop(gate);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.board.count((self.role, self.name, frontend), opened, &outcome);
            thread::sleep(self.pause);
        }
    }

    /// Keeps one connection open, which must stay at one endpoint.
    fn hold(&self) {
        let mut home = None;
        let mut conversation = self.probe(self.targets[0]).converse();
        while !self.stop.load(Ordering::Relaxed) {
            let outcome = conversation.as_mut().ok().map(|open| open.outcome());
            let Some(Outcome::Reached { endpoint, .. }) = outcome else { break };
            if *home.get_or_insert_with(|| endpoint.clone()) != endpoint {
                break;
            }
            self.board.state().held.0 += 1;
            thread::sleep(INTERVAL);
        }
        if !self.stop.load(Ordering::Relaxed) {
            self.board.state().held.1 += 1;
        }
    }
}
