//! `make demo`: Services being proxied, live, without a cluster.
//!
//! The demo makes a small cluster of network namespaces ([`world`]), starts `switchyard` on one of its
//! nodes with a copy of `examples/` ([`manifests`]), lets clients connect ([`traffic`]), changes
//! endpoints ([`script`]), and shows where connections go ([`view`]). Root is needed. Nothing stays:
//! namespaces have no names, and the proxy dies with the demo.

#![forbid(unsafe_code)]

mod board;
mod cast;
mod display;
mod error;
mod findings;
mod kernel;
mod manifests;
mod screen;
mod script;
mod stop;
mod switchyard;
mod traffic;
mod view;
mod world;

use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};

use packet_rig::{LoadGenerator, LoadPlan, Target, chain};

use self::{
    board::Board,
    cast::{ROLES, WEB},
    display::Display,
    error::{DemoError, Result},
    findings::Findings,
    manifests::Manifests,
    script::Stage,
    stop::Stop,
    switchyard::Switchyard,
    traffic::Traffic,
    world::World,
};

/// Connections that stay open all the time.
const HELD: usize = 4;

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(DemoError::Stopped) => {
            eprintln!("demo: stopped; everything is put away");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("demo: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Runs the demo, and returns the number of failed connections.
fn run() -> Result<u64> {
    check()?;
    let binary = Switchyard::find()?;
    let stop = Stop::listen().map_err(DemoError::io("listen for signals"))?;
    let board = Arc::new(Board::new());
    let mut display = Display::start(&board, &stop)?;
    let findings = perform(binary, &board, &mut display, &stop).map_err(|error| {
        // Ctrl-C reaches every process of the terminal; what follows from that is no failure.
        if stop.is_set() { DemoError::Stopped } else { error }
    })?;
    let state = board.state().clone();
    let failed = state.failed() + findings.held.1;
    display.finish(&view::summary(&state, &findings)).map_err(DemoError::io("print"))?;
    Ok(failed)
}

/// Builds the cluster, plays the script, and removes the cluster.
fn perform(
    binary: std::path::PathBuf,
    board: &Arc<Board>,
    display: &mut Display,
    stop: &Stop,
) -> Result<Findings> {
    display.say("making namespaces: 2 nodes, 16 pods, a client outside");
    let world = World::new()?;
    stop.check()?;
    let manifests = Manifests::new()?;
    let node = &world.node().namespace;
    let (mut proxy, ready) = Switchyard::start(node, binary, &manifests, stop)?;
    let held = hold_connections(&world)?;
    let traffic = Traffic::start(&world, board)?;
    let mut stage = Stage { world: &world, manifests: &manifests, board, display, stop };
    let mut findings = stage.play(&mut proxy, ready)?;
    traffic.finish()?;
    let report = held.finish()?.persistent;
    findings.held = (HELD as u64, report.failed());
    findings.held_answers = report.attempts - report.failed();
    Ok(findings)
}

/// Opens connections to `web` that stay open, with a request now and then.
fn hold_connections(world: &World) -> Result<LoadGenerator> {
    let role = &ROLES[WEB];
    let target = role.frontends[0].target.parse().map_err(std::io::Error::other);
    let target = Target::tcp(target.map_err(DemoError::io("read the cast's addresses"))?);
    let plan = LoadPlan {
        workers: 0,
        persistent: HELD,
        interval: Duration::from_millis(20),
        ..LoadPlan::new(&world.place(role.places[0])?.namespace, target)
    };
    Ok(LoadGenerator::start(&plan))
}

/// Checks that the user is root and that the programs are installed.
fn check() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(DemoError::NotRoot);
    }
    for (program, package) in [("ip", "iproute2"), ("nft", "nftables")] {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&paths).any(|path| is_program(&path.join(program))) {
            return Err(DemoError::Missing(program, package));
        }
    }
    Ok(())
}

fn is_program(path: &Path) -> bool {
    path.is_file()
}
