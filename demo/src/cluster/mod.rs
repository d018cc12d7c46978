//! The act in a small cluster of network namespaces, with nftables mode. Root is needed.

mod cast;
mod findings;
mod kernel;
mod script;
mod summary;
mod switchyard;
mod world;

use std::{
    net::AddrParseError,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use packet_rig::{LoadGenerator, LoadPlan, Target};

pub use self::cast::CLUSTER;
use self::{script::Cluster, switchyard::Switchyard, world::World};
use crate::{
    board::Board,
    cast::WEB,
    display::Display,
    error::{DemoError, Result},
    manifests::Manifests,
    server::ApiServer,
    stage::Stage,
    stop::Stop,
    traffic::{Origin, Traffic},
    view::Line,
};

/// Connections that stay open all the time.
const HELD: usize = 4;

/// Checks that the user is root and that the programs are installed.
pub fn check() -> Result<()> {
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

/// Builds the cluster, plays the script, and removes the cluster. Returns the summary, and the number of
/// connections that broke.
pub fn perform(
    binary: PathBuf,
    board: &Arc<Board>,
    display: &mut Display,
    stop: &Stop,
) -> Result<(Vec<Line>, u64)> {
    display.say("making namespaces: 2 nodes, 16 pods, a client outside");
    let world = World::new()?;
    stop.check()?;
    let mut manifests = Manifests::new()?;
    let node = &world.node().namespace;
    if let Some(server) = ApiServer::start(node)? {
        display.say("a genuine API server is running; the manifests are sent to it");
        manifests.publish(server)?;
    }
    let (mut proxy, ready) = Switchyard::start(node, binary, &manifests, stop)?;
    let held = hold_connections(&world)?;
    let traffic = Traffic::start(&clients(&world)?, &targets()?, board);
    let stage = Stage { manifests: &manifests, board, display, stop };
    let mut findings = Cluster { stage, world: &world }.play(&mut proxy, ready)?;
    traffic.finish()?;
    let report = held.finish()?.persistent;
    findings.has_server = manifests.kubeconfig().is_some();
    findings.held = (HELD as u64, report.failed());
    findings.held_answers = report.attempts - report.failed();
    let state = board.state().clone();
    Ok((summary::summary(&state, &findings), findings.held.1))
}

/// The clients of each Service.
fn clients(world: &World) -> Result<Vec<Vec<(&'static str, Origin)>>> {
    let at = |name: &&'static str| {
        let place = world.place(name)?;
        Ok((*name, Origin::Namespace(place.namespace.clone())))
    };
    CLUSTER.roles.iter().map(|role| role.places.iter().map(at).collect()).collect()
}

/// The frontends of each Service: the Services' own addresses.
fn targets() -> Result<Vec<Vec<Target>>> {
    let all = CLUSTER.roles.iter().map(|role| {
        let targets = role.frontends.iter().map(|frontend| {
            Ok(Target { protocol: frontend.protocol, address: frontend.target.parse()? })
        });
        targets.collect::<Result<_, AddrParseError>>()
    });
    all.collect::<Result<_, _>>()
        .map_err(std::io::Error::other)
        .map_err(DemoError::io("read the cast's addresses"))
}

/// Opens connections to `web` that stay open, with a request now and then.
fn hold_connections(world: &World) -> Result<LoadGenerator> {
    let target = targets()?[WEB][0];
    let plan = LoadPlan {
        workers: 0,
        persistent: HELD,
        interval: Duration::from_millis(20),
        ..LoadPlan::new(&world.place(CLUSTER.roles[WEB].places[0])?.namespace, target)
    };
    Ok(LoadGenerator::start(&plan))
}
