//! Runs a case: builds the network, starts servers and the proxy, and checks step by step.

use std::{
    collections::BTreeMap,
    env,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::{
    case::{Case, MANIFESTS, NODE_FILE, NODE_MANIFEST, ProbePlan, ProxyAction, ServerPlan, Step},
    echo::EchoServer,
    error::{Result, RigError},
    expect::{self, Memory},
    protocol::Protocol,
    proxy::{Proxy, ProxyOptions},
    topology::Topology,
    workdir::WorkDir,
};

/// How long the proxy has to program its first state.
const READY: Duration = Duration::from_secs(20);

/// How long after a change the probes are repeated until they show what is expected.
const SETTLE: Duration = Duration::from_secs(5);

/// Set to a number of seconds: when a case fails, its network stays for so long, and commands
/// that look into it are printed.
pub const KEEP: &str = "PACKET_RIG_KEEP";

/// The directory of manifests in a case's working directory.
const FILES: &str = "manifests";

/// Runs `case` with the proxy `binary` and one of its backends. The error is a report for people.
pub fn run_case(case: &Case, backend: &str, binary: &Path) -> Result<(), String> {
    let mut running = Running::start(case, backend, binary).map_err(|error| error.to_string())?;
    let result = running.proxy.wait_ready(READY).map_err(|error| error.to_string());
    let result = result.and_then(|()| running.follow(case));
    result.map_err(|message| {
        let report = format!("{}\n{message}\n{}", case.title, running.proxy.diagnostics());
        running.keep_open(&report);
        report
    })
}

/// What a running case consists of. Fields are dropped in order: the proxy ends before its network.
struct Running {
    proxy: Proxy,
    _servers: Vec<EchoServer>,
    topology: Topology,
    files: WorkDir,
    memory: Memory,
}

impl Running {
    fn start(case: &Case, backend: &str, binary: &Path) -> Result<Self> {
        let topology = Topology::new()?;
        let servers = start_servers(&topology, &case.servers)?;
        let files = WorkDir::new(&case.name)?;
        let mut contents = BTreeMap::from([(NODE_FILE, NODE_MANIFEST)]);
        contents.insert(MANIFESTS, &case.manifests);
        contents.extend(case.files.iter().map(|(name, text)| (name.as_str(), text.as_str())));
        for (name, text) in contents {
            files.replace(FILES, name, text)?;
        }

        let directory = files.directory(FILES)?;
        let log = files.path().join("proxy.log");
        let mut options = ProxyOptions::new(binary.to_owned(), backend, directory, log);
        if !case.cluster_cidr {
            options.cluster_cidr = None;
        }
        if let Some(more) = &case.config {
            let text = options.configuration(more);
            options.config = Some(files.replace("config", "config.yaml", &text)?);
        }
        options.args.clone_from(&case.args);
        let proxy = Proxy::start(&topology.node().namespace, options)?;
        Ok(Self { proxy, _servers: servers, topology, files, memory: Memory::default() })
    }

    fn follow(&mut self, case: &Case) -> Result<(), String> {
        self.check(&case.probes).map_err(|message| format!("at first: {message}"))?;
        for step in &case.steps {
            self.change(step)
                .map_err(|error| error.to_string())
                .and_then(|()| self.check(&step.probes))
                .map_err(|message| format!("after \"{}\": {message}", step.title))?;
        }
        Ok(())
    }

    fn change(&mut self, step: &Step) -> Result<()> {
        if let Some(text) = &step.manifests {
            self.files.replace(FILES, MANIFESTS, text)?;
        }
        for (name, text) in &step.files {
            match text {
                Some(text) => drop(self.files.replace(FILES, name, text)?),
                None => self.files.remove(FILES, name)?,
            }
        }
        for action in &step.proxy {
            match action {
                ProxyAction::Stop => drop(self.proxy.stop()),
                ProxyAction::Kill => self.proxy.kill(),
                ProxyAction::Start => {
                    self.proxy.start_again()?;
                    self.proxy.wait_ready(READY)?;
                }
            }
        }
        thread::sleep(step.pause());
        Ok(())
    }

    /// Repeats each probe until it shows what is expected, or the time to settle is over.
    fn check(&mut self, plans: &[ProbePlan]) -> Result<(), String> {
        let deadline = Instant::now() + SETTLE;
        for plan in plans {
            loop {
                let checked = expect::check(&self.topology, plan, &mut self.memory);
                let Err(mismatch) = checked.map_err(|error| error.to_string())? else { break };
                if let Some(status) = self.proxy.ended() {
                    return Err(format!("{mismatch}; {}", RigError::ProxyEnded { status }));
                }
                if Instant::now() >= deadline {
                    return Err(mismatch);
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// Leaves the network open for people to look at, if they asked for it.
    fn keep_open(&self, report: &str) {
        let seconds = env::var(KEEP).ok().and_then(|text| text.parse().ok());
        if let Some(seconds) = seconds {
            eprintln!("{report}\nkept for {seconds} s:\n{}", self.topology.nsenter_commands());
            thread::sleep(Duration::from_secs(seconds));
        }
    }
}

/// A server on port 8080 of every pod, and those the case asks for.
fn start_servers(topology: &Topology, plans: &[ServerPlan]) -> Result<Vec<EchoServer>> {
    let usual = topology.pods().map(|pod| {
        EchoServer::start(&pod.namespace, &pod.name, 8080, &[Protocol::Tcp, Protocol::Udp])
    });
    let mut servers = usual.collect::<Result<Vec<_>>>()?;
    for plan in plans {
        for name in &plan.at {
            let place = topology.place(name).ok_or_else(|| RigError::BadCase {
                case: format!("a server at {name}"),
                message: "there is no such place".to_owned(),
            })?;
            let name = format!("{name}{}", plan.suffix);
            servers.push(EchoServer::start(&place.namespace, &name, plan.port, &plan.protocols)?);
        }
    }
    Ok(servers)
}
