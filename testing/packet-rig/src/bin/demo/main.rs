//! `make demo`: Services being proxied, live, without a cluster.
//!
//! One show makes a small cluster of network namespaces and starts `switchyard` on one of its
//! nodes, in nftables mode; root is needed. The other, of the argument `user`, starts it in
//! userspace mode, with servers and clients at loopback addresses, as any user. In both, the proxy
//! follows a copy of `examples/` ([`manifests`]), clients connect all the time ([`traffic`]), the
//! [`script`] changes endpoints, and the [`view`] shows where connections go. Nothing stays:
//! namespaces have no names, and the proxy dies with the demo.

#![forbid(unsafe_code)]

mod board;
mod cast;
mod manifests;
mod screen;
mod script;
mod traffic;
mod view;

use std::{
    env,
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    process::{ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use packet_rig::{
    EchoServer, Layout, Protocol, Proxy, ProxyOptions, Target, Topology, chain, spawn,
};

use self::{
    board::{Board, Standing},
    cast::{NODE_PORT, Show, WEB},
    manifests::Manifests,
    screen::Display,
    script::{SILENT, Script},
    view::{bold, ms},
};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const READY: Duration = Duration::from_secs(20);
const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

fn main() -> ExitCode {
    let show = match env::args().nth(1).as_deref() {
        Some("user") => Show::Loopback,
        None if !rustix::process::geteuid().is_root() => Show::Loopback,
        _ => Show::Cluster,
    };
    match run(show, Box::leak(Box::new(Board::new(show)))) {
        Ok(failed) => ExitCode::from(u8::from(failed > 0)),
        Err(error) => {
            eprintln!("demo: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Plays the show, and returns the number of connections that failed or broke.
fn run(show: Show, board: &'static Board) -> Result<u64> {
    let binary = env::current_exe()?.with_file_name("switchyard");
    let mut display = Display::start(board)?;
    board.state().tallies[WEB].endpoints[3].standing = Standing::Absent;
    let mut figures = match show {
        Show::Cluster => cluster(binary, board, &mut display),
        Show::Loopback => loopback(binary, board, &mut display),
    }?;
    figures.insert(figures.len() - 2, bold("Look next at"));
    let state = board.state().clone();
    display.finish([view::totals(&state), figures].concat());
    Ok(state.totals().1 + state.held.1)
}

/// Builds the cluster, plays the script, and removes the cluster. Returns the figures of the
/// summary.
fn cluster(binary: PathBuf, board: &'static Board, display: &mut Display) -> Result<Vec<String>> {
    let show = Show::Cluster;
    let pods: Vec<_> = (0..show.roles().len()).flat_map(|role| show.pods(role)).collect();
    display.say(format!("making namespaces: 2 nodes, {} pods, a client outside", pods.len() + 2));
    let mut places = vec![("a", 1, 0), ("b", 1, 1)];
    places.extend(pods.iter().map(|(name, node, index)| (name.as_str(), *node, *index)));
    let topology = Topology::with_pods(Layout::Routed, &places)?;
    let start = |(name, ..): &(String, u8, u8)| {
        EchoServer::start(&topology.place(name)?.namespace, name, 8080, &PROTOCOLS)
    };
    let _servers = pods.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let node = &topology.node().namespace;
    let manifests = Manifests::new(str::to_owned)?;
    let log = manifests.path("proxy.log");
    let options = ProxyOptions::new(binary, "nftables", manifests.path(""), log.clone());
    let started = Instant::now();
    let mut proxy = Proxy::start(node, options)?;
    proxy.wait_ready(READY).map_err(|error| failed(&chain(&error), &log))?;
    let (pid, ready) = (proxy.pid().unwrap_or_default(), ms(started.elapsed()));
    board.state().proxy = Some(pid);
    display.say(format!("switchyard (pid {pid}) follows the manifests: ready in {ready}"));
    let target = |text: &&str| text.rsplit(' ').next().unwrap_or(text).parse::<Target>();
    let targets = show.roles().iter().map(|role| role.frontends.iter().map(target).collect());
    let origin = |place: &str| Ok((Some(topology.place(place)?.namespace.clone()), None));
    let traffic = traffic::start(&targets.collect::<Result<Vec<_>, _>>()?, origin, board)?;
    let mut lines = Script { manifests, board, display }.cluster(node, &mut proxy)?;
    traffic::finish(traffic, board)?;
    lines.push("  target/release/switchyard render --manifests examples   the rules".into());
    lines.push("  docs/nftables.md, docs/architecture.md, examples/       how to read them".into());
    Ok(lines)
}

/// Starts servers and the proxy at loopback addresses, plays the script, and ends them. Returns the
/// figures of the summary.
fn loopback(binary: PathBuf, board: &'static Board, display: &mut Display) -> Result<Vec<String>> {
    let show = Show::Loopback;
    let pods: Vec<_> = (0..show.roles().len()).flat_map(|role| show.pods(role)).collect();
    display.say(format!("starting {} servers on this machine, at 127.77.0.0/16", pods.len()));
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    let node_port = (30_080..31_000).find(is_free).ok_or("no node port is free")?;
    // A port may be in use at one of the addresses.
    let (port, mut servers) =
        (0..50).find_map(|_| serve(show, &pods).ok()).ok_or("no port is free")?;
    let manifests = Manifests::new(|text| manifests::at_loopback(text, port, node_port))?;
    let (log, table) = (manifests.path("proxy.log"), manifests.path("table.json"));
    let mut command = spawn::command(binary);
    command
        .args(["--proxy-mode", "userspace", "--userspace-capture", "loopback"])
        // Each datagram of the demo comes from a new port, as those of resolvers do. A flow that is
        // kept for a minute would be kept for nothing, and a user may have few descriptors.
        .args(["--hostname-override", "node-1", "--userspace-udp-timeout", "1s"])
        .arg(format!("--manifests={}", manifests.path("").display()))
        .arg(format!("--userspace-table={}", table.display()))
        .arg("--healthz-port=0")
        .arg(format!("--metrics-bind-address=127.0.0.1:{}", free_port()?))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log)?);
    let started = Instant::now();
    let mut proxy = spawn::spawn(command)?;
    let ended = |_: &board::State| {
        let text = fs::read_to_string(&table).unwrap_or_default();
        let found = targets(&text);
        found.map(Ok).or_else(|| Some(Err(proxy.try_wait().ok()??.to_string())))
    };
    let ready = board.wait(READY.as_secs(), "the proxy's readiness", ended);
    let targets = ready.map_err(|error| error.to_string()).flatten();
    let targets = targets.map_err(|reason| failed(&reason, &log))?;
    let (pid, ready) = (proxy.id(), ms(started.elapsed()));
    board.state().proxy = Some(pid);
    display.say(format!("switchyard (pid {pid}) listens, without privileges: ready in {ready}"));
    for (role, targets) in targets.iter().enumerate() {
        let mut places = Vec::new();
        for ((label, _), target) in board.state().tallies[role].frontends.iter_mut().zip(targets) {
            places.push(format!("{label} is at {}", target.address));
            *label += &format!(" = :{}", target.address.port());
        }
        display.say(format!("{:<5} {}", show.roles()[role].name, places.join(", ")));
        thread::sleep(Duration::from_millis(150));
    }
    let origin = |place: &str| Ok((None, Some(place.parse()?)));
    let traffic = traffic::start(&targets, origin, board)?;
    let mut lines = Script { manifests, board, display }.loopback(&mut servers[SILENT])?;
    traffic::finish(traffic, board)?;
    lines.push("  target/release/switchyard --proxy-mode userspace --manifests examples".into());
    lines.push("  docs/userspace.md, docs/load-balancing.md, examples/    how it works".into());
    Ok(lines)
}

/// Starts all servers at one port, which is returned.
fn serve(show: Show, pods: &[(String, u8, u8)]) -> Result<(u16, Vec<EchoServer>)> {
    let port = free_port()?;
    let mut servers = Vec::new();
    for (name, node, index) in pods {
        let address = (show.address(*node, *index), port).into();
        servers.push(EchoServer::start_at(name, address, &PROTOCOLS)?);
    }
    Ok((port, servers))
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?.local_addr()?.port())
}

/// Reads from the table that the proxy writes where each Service can be reached; `None` if one is
/// missing, or lacks its endpoints.
fn targets(table: &str) -> Option<Vec<Vec<Target>>> {
    let table: Vec<serde_json::Value> = serde_json::from_str(table).ok()?;
    let mut all = Vec::new();
    for (index, role) in Show::Loopback.roles().iter().enumerate() {
        let mut targets = Vec::new();
        for frontend in role.frontends {
            let Target { protocol, address } = frontend.rsplit(' ').next()?.parse().ok()?;
            let own = address.to_string();
            let entry = table.iter().find(|entry| entry["clusterIp"] == own)?;
            if entry["endpoints"] == 0 && !Show::Loopback.pods(index).is_empty() {
                return None;
            }
            let place = if *frontend == NODE_PORT { &entry["nodePort"] } else { &entry["address"] };
            targets.push(Target { protocol, address: place.as_str()?.parse::<SocketAddr>().ok()? });
        }
        all.push(targets);
    }
    Some(all)
}

/// The failure of a proxy with this log.
fn failed(reason: &str, log: &std::path::Path) -> String {
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let last = lines[lines.len().saturating_sub(5)..].join("\n");
    format!("the proxy failed: {reason}; the last lines of its log:\n{last}")
}
