//! Clients: threads that make one real connection after the other, and connections that stay open.

use std::{
    net::IpAddr,
    sync::{PoisonError, atomic::Ordering},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use packet_rig::{NetNs, Outcome, Probe, RigError, Target};

use super::{Result, board::Board, cast::WEB};

/// The time without an answer after which a connection has failed. A SYN that was lost, or refused
/// while the kernel was still busy sending it, is repeated after a second.
const TIMEOUT: Duration = Duration::from_millis(2500);
const PATIENCE: Duration = Duration::from_millis(200);
/// The connections to `web` that stay open all the time, and the pause between two requests.
pub const HELD: u64 = 4;
const INTERVAL: Duration = Duration::from_millis(20);

/// Where a client is: in a network namespace, or at an address of this machine.
type Origin = (Option<NetNs>, Option<IpAddr>);

pub type Traffic = Vec<JoinHandle<Result<(), RigError>>>;

#[derive(Clone)]
struct Client {
    role: usize,
    name: &'static str,
    pause: Duration,
    origin: Origin,
    targets: Vec<Target>,
    board: &'static Board,
}

/// Starts the clients of every Service, which use the Service's targets in turn.
pub fn start(
    targets: &[Vec<Target>],
    origin: impl Fn(&str) -> Result<Origin>,
    board: &'static Board,
) -> Result<Traffic> {
    let mut traffic = Vec::new();
    let show = board.state().show;
    for ((role, cast), targets) in show.roles().iter().enumerate().zip(targets) {
        for name in cast.places {
            let pause = Duration::from_micros(cast.pause);
            let (origin, targets) = (origin(name)?, targets.clone());
            let client = Client { role, name, pause, origin, targets, board };
            let held = if role == WEB && *name == cast.places[0] { HELD } else { 0 };
            traffic.extend((0..held).map(|_| client.run(Client::hold)));
            traffic.extend((0..cast.workers).map(|_| client.run(Client::connect_in_turn)));
        }
    }
    Ok(traffic)
}

/// Stops the traffic; an error if a client stopped working before.
pub fn finish(mut traffic: Traffic, board: &Board) -> Result<()> {
    board.is_over.store(true, Ordering::Relaxed);
    thread::sleep(PATIENCE);
    // The others wait for a refusal or an answer; they end with the process.
    for client in traffic.extract_if(.., |client| client.is_finished()) {
        client.join().map_err(|_| "a client's thread panicked")??;
    }
    Ok(())
}

impl Client {
    fn run(&self, work: fn(&Self)) -> JoinHandle<Result<(), RigError>> {
        let client = self.clone();
        thread::spawn(move || {
            match &client.origin.0 {
                Some(namespace) => namespace.run(|| work(&client))?,
                None => work(&client),
            }
            Ok(())
        })
    }

    fn probe(&self, target: Target) -> Probe {
        // Thousands of connections to one address would use up the ports if each kept its own for a
        // minute.
        Probe { timeout: TIMEOUT, source: self.origin.1, resets: true, ..Probe::new(target) }
    }

    fn connect_in_turn(&self) {
        for (frontend, target) in self.targets.iter().enumerate().cycle() {
            let gate = self.board.gate.read().unwrap_or_else(PoisonError::into_inner);
            let opened = Instant::now();
            let outcome = self.probe(*target).attempt();
            drop(gate);
            if self.board.is_over.load(Ordering::Relaxed) {
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
        while !self.board.is_over.load(Ordering::Relaxed) {
            match conversation.as_mut().ok().map(|open| open.outcome()) {
                Some(Outcome::Reached { endpoint, .. })
                    if *home.get_or_insert_with(|| endpoint.clone()) == endpoint => {}
                _ if self.board.is_over.load(Ordering::Relaxed) => return,
                _ => return self.board.state().held.1 += 1,
            }
            self.board.state().held.0 += 1;
            thread::sleep(INTERVAL);
        }
    }
}
