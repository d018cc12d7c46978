//! `make demo`: Services being proxied, live, without a cluster.
//!
//! There are two shows. One makes a small cluster of network namespaces and starts `switchyard` on
//! one of its nodes, in nftables mode; root is needed. The other starts `switchyard` in userspace
//! mode, with servers and clients at loopback addresses, as any user; it is chosen by the argument
//! `user`, or for who is not root. In both, the proxy follows a copy of `examples/`
//! ([`manifests`]), clients connect all the time ([`traffic`]), the [`script`] changes endpoints,
//! and the [`view`] shows where connections go. Where `KUBE_APISERVER` and `ETCD` name a genuine
//! API server and its etcd, the proxy of the first show follows that. Nothing stays: namespaces
//! have no names, and the proxy dies with the demo.

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
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    path::PathBuf,
    process::{Child, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use packet_rig::{
    EchoServer, Layout, Objects, Protocol, Proxy, ProxyOptions, Target, Topology, chain, spawn,
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP},
    flag,
};

use self::{
    board::{Board, Standing},
    cast::{NODE_PORT, Show, WEB},
    manifests::Manifests,
    screen::Display,
    script::{SILENT, Script},
    traffic::{Origin, Traffic},
    view::{bold, figure, ms, thousands},
};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// The longest time until the proxy is ready.
const READY: Duration = Duration::from_secs(20);
const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

fn main() -> ExitCode {
    let is_root = rustix::process::geteuid().is_root();
    let show = match env::args().nth(1).as_deref() {
        None if !is_root => {
            println!("demo: not root, so this is userspace mode; as root, it is nftables mode");
            Show::Loopback
        }
        Some("user") => Show::Loopback,
        None | Some("cluster") => Show::Cluster,
        Some(other) => {
            eprintln!("demo: there is no show {other:?}, but `cluster` and `user`");
            return ExitCode::FAILURE;
        }
    };
    let board = Arc::new(Board::new(show));
    match run(show, &board) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        // Ctrl-C reaches every process of the terminal; what follows from that is no failure.
        Err(_) if board.stop.load(Ordering::Relaxed) => {
            eprintln!("demo: stopped; everything is put away");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("demo: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Plays the show, and returns the number of connections that failed or broke.
fn run(show: Show, board: &Arc<Board>) -> Result<u64> {
    let beside = || Some(env::current_exe().ok()?.with_file_name("switchyard"));
    let binary = env::var_os("SWITCHYARD_BIN").map(PathBuf::from).or_else(beside);
    let binary = binary.filter(|path| path.is_file());
    let binary =
        binary.ok_or("there is no `switchyard`: cargo build --release --bin switchyard")?;
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        // The second signal ends the process at once. The kernel removes what is left.
        flag::register_conditional_default(signal, Arc::clone(&board.stop))?;
        flag::register(signal, Arc::clone(&board.stop))?;
    }
    // A demo that measures milliseconds cannot be suspended.
    flag::register(SIGTSTP, Arc::new(AtomicBool::new(false)))?;
    let mut display = Display::start(board)?;
    board.state().tallies[WEB].endpoints[3].standing = Standing::Absent;
    let figures = match show {
        Show::Cluster => cluster(binary, board, &mut display),
        Show::Loopback => loopback(&binary, board, &mut display),
    }?;
    let state = board.state().clone();
    display.finish(&[view::totals(&state), figures].concat());
    Ok(state.totals().1 + state.held.1)
}

/// Builds the cluster, plays the script, and removes the cluster. Returns the figures of the
/// summary.
fn cluster(binary: PathBuf, board: &Arc<Board>, display: &mut Display) -> Result<Vec<String>> {
    let show = Show::Cluster;
    let pods: Vec<_> = (0..show.roles().len()).flat_map(|role| show.pods(role)).collect();
    display.say(format!("making namespaces: 2 nodes, {} pods, a client outside", pods.len() + 2));
    let mut places = vec![("a", 1, 0), ("b", 1, 1)];
    places.extend(pods.iter().map(|(name, node, index)| (name.as_str(), *node, *index)));
    let topology = Topology::with_pods(Layout::Routed, &places)?;
    let servers = pods.iter().filter_map(|(name, ..)| topology.place(name));
    let start =
        |pod: &packet_rig::Place| EchoServer::start(&pod.namespace, &pod.name, 8080, &PROTOCOLS);
    let _servers = servers.map(start).collect::<Result<Vec<_>, _>>()?;
    let node = &topology.node().namespace;
    let mut manifests = Manifests::new(str::to_owned)?;
    if manifests.publish(node)? {
        display.say("a genuine API server is running; the manifests are sent to it");
    }
    let log = manifests.path("proxy.log");
    let mut options = ProxyOptions::new(binary, "nftables", manifests.directory(), log.clone());
    if let Some(kubeconfig) = manifests.kubeconfig() {
        options.objects = Objects::Server(kubeconfig);
    }
    let started = Instant::now();
    let mut proxy = Proxy::start(node, options)?;
    proxy.wait_ready(READY).map_err(|error| failed(&chain(&error), &log))?;
    let (pid, ready) = (proxy.pid().unwrap_or_default(), ms(started.elapsed()));
    board.state().proxy = Some(pid);
    display.say(format!("switchyard (pid {pid}) follows the manifests: ready in {ready}"));
    let target = |text: &&str| text.rsplit(' ').next().unwrap_or(text).parse::<Target>();
    let targets = show.roles().iter().map(|role| role.frontends.iter().map(target).collect());
    let origin = |place: &str| {
        let place = topology.place(place).ok_or("a client has no such place")?;
        Ok(Origin::Namespace(place.namespace.clone()))
    };
    let traffic = Traffic::start(&targets.collect::<Result<Vec<_>, _>>()?, origin, board)?;
    let mut lines = Script { manifests, board, display }.cluster(node, &mut proxy)?;
    traffic.finish()?;
    lines.push(bold("Look next at"));
    lines.push("  target/release/switchyard render --manifests examples   the rules".into());
    lines.push("  docs/nftables.md, docs/architecture.md, examples/       how to read them".into());
    Ok(lines)
}

/// Starts servers and the proxy at loopback addresses, plays the script, and ends them. Returns the
/// figures of the summary.
fn loopback(binary: &PathBuf, board: &Arc<Board>, display: &mut Display) -> Result<Vec<String>> {
    let show = Show::Loopback;
    let pods: Vec<_> = (0..show.roles().len()).flat_map(|role| show.pods(role)).collect();
    display.say(format!("starting {} servers on this machine, at 127.77.0.0/16", pods.len()));
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    let node_port = (30_080..31_000).find(is_free).ok_or("no node port is free")?;
    let has_v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
    // A port may be in use at one of the addresses.
    let (port, mut servers) =
        (0..50).find_map(|_| serve(show, &pods, has_v6).ok()).ok_or("no port is free")?;
    let manifests = Manifests::new(|text| manifests::at_loopback(text, port, node_port, has_v6))?;
    let (log, table) = (manifests.path("proxy.log"), manifests.path("table.json"));
    let mut command = spawn::command(binary);
    command
        .args(["--proxy-mode", "userspace", "--userspace-capture", "loopback"])
        // Each datagram of the demo comes from a new port, as those of resolvers do. A flow that is
        // kept for a minute would be kept for nothing, and a user may have few descriptors.
        .args(["--hostname-override", "node-1", "--userspace-udp-timeout", "1s"])
        .arg(format!("--manifests={}", manifests.directory().display()))
        .arg(format!("--userspace-table={}", table.display()))
        .arg(format!("--healthz-bind-address=127.0.0.1:{}", free_port()?))
        .arg(format!("--metrics-bind-address=127.0.0.1:{}", free_port()?))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log)?);
    let started = Instant::now();
    let mut proxy = Ended(spawn::spawn(command)?);
    let ended = |_: &board::State| {
        let text = fs::read_to_string(&table).unwrap_or_default();
        let found = targets(&text, has_v6);
        found.map(Ok).or_else(|| Some(Err(proxy.0.try_wait().ok()??.to_string())))
    };
    let ready = board.wait(READY.as_secs(), "the proxy's readiness", ended);
    let targets = ready.map_err(|error| error.to_string()).flatten();
    let targets = targets.map_err(|reason| failed(&reason, &log))?;
    let (pid, ready) = (proxy.0.id(), ms(started.elapsed()));
    board.state().proxy = Some(pid);
    let said = "listens, without privileges and without rules: ready in";
    display.say(format!("switchyard (pid {pid}) {said} {ready}"));
    for (role, targets) in targets.iter().enumerate() {
        let mut places = Vec::new();
        for ((label, _), target) in board.state().tallies[role].frontends.iter_mut().zip(targets) {
            places.push(format!("{label} is at {}", target.address));
            *label += &format!(" = :{}", target.address.port());
        }
        display.say(format!("{:<5} {}", show.roles()[role].name, places.join(", ")));
        board.sleep(Duration::from_millis(150))?;
    }
    let origin = |place: &str| Ok(Origin::Address(place.parse()?));
    let traffic = Traffic::start(&targets, origin, board)?;
    let mut script = Script { manifests, board, display };
    let mut lines = script.loopback(&traffic, &mut servers[SILENT])?;
    traffic.finish()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let memory =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
    if let (Some(memory), Ok(open)) = (memory, fs::read_dir(format!("/proc/{pid}/fd"))) {
        let used = format!("KiB of memory and {} descriptors of the proxy", open.count());
        lines.push(figure(thousands(memory.parse()?), used));
    }
    lines.push(bold("Look next at"));
    lines.push("  target/release/switchyard --proxy-mode userspace --manifests examples".into());
    lines.push("  docs/userspace.md, docs/load-balancing.md, examples/    how it works".into());
    Ok(lines)
}

/// A child that ends with the value.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts all servers at one port, which is returned.
fn serve(show: Show, pods: &[(String, u8, u8)], has_v6: bool) -> Result<(u16, Vec<EchoServer>)> {
    let port = free_port()?;
    let mut servers = Vec::new();
    for (name, node, index) in pods {
        let address = show.address(*node, *index);
        if has_v6 || address.is_ipv4() {
            servers.push(EchoServer::start_at(name, (address, port).into(), &PROTOCOLS)?);
        }
    }
    Ok((port, servers))
}

/// A port of this machine that is free at all addresses.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?.local_addr()?.port())
}

/// Reads from the table that the proxy writes where each Service can be reached; `None` if one is
/// missing, or lacks its endpoints.
fn targets(table: &str, has_v6: bool) -> Option<Vec<Vec<Target>>> {
    let table: Vec<serde_json::Value> = serde_json::from_str(table).ok()?;
    let mut all = Vec::new();
    for (index, role) in Show::Loopback.roles().iter().enumerate() {
        let mut targets = Vec::new();
        for frontend in role.frontends {
            let Target { protocol, address } = frontend.rsplit(' ').next()?.parse().ok()?;
            if address.is_ipv6() && !has_v6 {
                continue;
            }
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
