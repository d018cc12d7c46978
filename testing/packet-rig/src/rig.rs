//! A network with servers, the proxy under test and its manifests.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::{
    backend, binary,
    case::{
        Case, Expectation, HttpPlan, MANIFESTS, NODE_FILE, NODE_MANIFEST, ProbePlan, ServerPlan,
    },
    echo::EchoServer,
    error::{Result, chain},
    expect::{self, Memory},
    http,
    kube_proxy::{self, ManifestServer},
    protocol::Protocol,
    proxy::{Objects, Proxy, ProxyOptions},
    shares::SharePlan,
    subject::{CommandLine, Subject},
    topology::{Place, Topology},
    wait::{PATIENCE, scaled},
    workdir::WorkDir,
};

/// The time for which a probe is repeated, from its beginning, until the outcome is as expected.
/// Enough for two answers that are lost during a change, each of which costs the patience of a
/// probe.
const SETTLE: Duration = Duration::from_secs(10);

/// The directory of manifests in the working directory.
const FILES: &str = "manifests";

/// A running proxy and its surroundings. Fields are dropped in order: the proxy ends before its
/// network.
#[derive(Debug)]
pub struct Rig {
    /// The proxy under test.
    pub proxy: Proxy,
    _api_server: Option<ManifestServer>,
    _servers: Vec<EchoServer>,
    /// The network that the proxy runs in.
    pub topology: Topology,
    files: WorkDir,
    memory: Memory,
}

impl Rig {
    /// Builds the network of `case`, writes the first manifests, starts the program under test
    /// with a backend, and waits until it has programmed something. Probes and steps of the case
    /// are ignored.
    pub fn start(case: &Case, backend: &str) -> Result<Self> {
        let mut rig = Self::prepare(case, backend, &binary::find()?)?;
        rig.start_again()?;
        Ok(rig)
    }

    /// Builds the same as [`Self::start`] for the proxy `binary`, without starting it.
    pub fn prepare(case: &Case, backend: &str, binary: &Path) -> Result<Self> {
        Self::of(case, &Subject::new(backend, binary)?)
    }

    /// Builds the same for any proxy, which is not started.
    pub fn of(case: &Case, subject: &Subject) -> Result<Self> {
        let Subject { name: backend, mode, binary, command } = subject;
        let mut topology = Topology::with_layout(case.layout)?;
        if let Some(directory) = backend::programs(backend)? {
            topology.add_programs_to_node(&directory);
        }
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
        let node = &topology.node().namespace;
        let mut options = ProxyOptions::new(binary.clone(), mode, directory.clone(), log);
        options.command.clone_from(command);
        if !case.cluster_cidr {
            options.cluster_cidr = None;
        }
        let mut api_server = None;
        options.args.clone_from(&case.args);
        let more = backend::arguments(backend).iter().map(|&argument| argument.to_owned());
        options.args.extend(more);
        if command.as_ref().is_some_and(CommandLine::asks_a_server) {
            let server = ManifestServer::start(node, &directory)?;
            options.objects = Objects::Server(server.kubeconfig().to_owned());
            api_server = Some(server);
            options.args.extend(kube_proxy::ARGUMENTS.iter().map(|&argument| argument.to_owned()));
        }
        if let Some(more) = &case.config {
            let fields = api_server.as_ref().map(|server| kube_proxy::fields(server.kubeconfig()));
            let text = options.configuration(&(fields.unwrap_or_default() + more));
            options.config = Some(files.replace("config", "config.yaml", &text)?);
        }
        let proxy = Proxy::prepare(node, options);
        Ok(Self {
            proxy,
            _api_server: api_server,
            _servers: servers,
            topology,
            files,
            memory: Memory::default(),
        })
    }

    /// Waits until the proxy has programmed something.
    pub fn wait_ready(&mut self) -> Result<()> {
        self.proxy.wait_ready(scaled(PATIENCE))
    }

    /// Starts the proxy again, and waits until it has programmed something.
    pub fn start_again(&mut self) -> Result<()> {
        self.proxy.start_again()?;
        self.wait_ready()
    }

    /// Writes a file of manifests, at once.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        self.files.replace(FILES, name, text).map(drop)
    }

    pub fn remove(&self, name: &str) -> Result<()> {
        self.files.remove(FILES, name)
    }

    /// Repeats each probe until the outcome is as expected, or its time to settle is over. Probes
    /// that expect a failure are made at the same time, as most of them wait.
    pub fn check(&mut self, plans: &[ProbePlan]) -> Result<(), String> {
        let Self { topology, memory, proxy, .. } = self;
        let seen = proxy.seen();
        let proxy = Mutex::new(proxy);
        let until_it_holds =
            |check: &mut dyn FnMut() -> Result<Result<(), String>>| until_it_holds(&proxy, check);
        let (failing, answered): (Vec<_>, Vec<_>) =
            plans.iter().partition(|plan| matches!(plan.expect, Expectation::Fails(_)));
        thread::scope(|scope| {
            let check = |plan| expect::check(topology, seen, plan, &mut Memory::default());
            let running: Vec<_> = failing
                .into_iter()
                .map(|plan| scope.spawn(move || until_it_holds(&mut || check(plan))))
                .collect();
            running.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err("a probe's thread panicked".to_owned()))
            })
        })?;
        answered.into_iter().try_for_each(|plan| {
            until_it_holds(&mut || expect::check(topology, seen, plan, memory))
        })
    }

    /// Makes the connections of each plan until the endpoints have their shares, or the time to
    /// settle is over: a change may not be programmed yet.
    pub fn check_shares(&mut self, plans: &[SharePlan]) -> Result<(), String> {
        for plan in plans {
            let place = self.place(&plan.from).map_err(|error| chain(&error))?.clone();
            let proxy = Mutex::new(&mut self.proxy);
            until_it_holds(&proxy, &mut || plan.run(&place))?;
        }
        Ok(())
    }

    /// Repeats each health check until the answer is as expected, or the time to settle is over.
    pub fn check_http(&mut self, plans: &[HttpPlan]) -> Result<(), String> {
        for plan in plans {
            let place = self.place(&plan.from).map_err(|error| chain(&error))?.clone();
            let proxy = Mutex::new(&mut self.proxy);
            until_it_holds(&proxy, &mut || Ok(ask_health(&place, plan)))?;
        }
        Ok(())
    }

    pub fn place(&self, name: &str) -> Result<&Place> {
        self.topology.place(name)
    }
}

/// Repeats `check` until it succeeds, or the time to settle is over, but once at least: a machine
/// that stands still for a while takes the answer of any probe.
fn until_it_holds(
    proxy: &Mutex<&mut Proxy>,
    check: &mut dyn FnMut() -> Result<Result<(), String>>,
) -> Result<(), String> {
    let started = Instant::now();
    let mut attempts = 0;
    loop {
        attempts += 1;
        let checked = check().map_err(|error| chain(&error))?;
        let Err(mismatch) = checked else { return Ok(()) };
        if let Some(status) = proxy.lock().unwrap_or_else(PoisonError::into_inner).ended() {
            return Err(format!("{mismatch}; the proxy ended ({status})"));
        }
        let waited = started.elapsed();
        if attempts > 1 && waited >= scaled(SETTLE) {
            return Err(format!("{mismatch} (attempt {attempts}, after {} s)", waited.as_secs()));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Asks every address once, and compares.
fn ask_health(place: &Place, plan: &HttpPlan) -> Result<(), String> {
    for address in &plan.to {
        let asked = http::get(&place.namespace, *address, &plan.path);
        let wrong = |what: String| Err(format!("{} to {address}{}: {what}", place.name, plan.path));
        match (asked, plan.status) {
            (Err(_), None) => {}
            (Err(error), Some(_)) => return wrong(chain(&error)),
            (Ok(answer), None) => return wrong(format!("expected no server, got {answer:?}")),
            (Ok(answer), Some(status)) => {
                let has = |line: &String| {
                    answer.head.lines().any(|sent| sent.trim_end().eq_ignore_ascii_case(line))
                };
                if answer.status != status {
                    return wrong(format!("expected {status}, got {answer:?}"));
                }
                if let Some(missing) = plan.headers.iter().find(|line| !has(line)) {
                    return wrong(format!("no header {missing:?} in {answer:?}"));
                }
                if plan.body.as_ref().is_some_and(|body| *body != answer.body) {
                    return wrong(format!("expected {:?}, got {:?}", plan.body, answer.body));
                }
            }
        }
    }
    Ok(())
}

/// Starts a server on port 8080 of every pod, and the servers of the case.
fn start_servers(topology: &Topology, plans: &[ServerPlan]) -> Result<Vec<EchoServer>> {
    let usual = topology.pods().map(|pod| {
        EchoServer::start(&pod.namespace, &pod.name, 8080, &[Protocol::Tcp, Protocol::Udp])
    });
    let mut servers = usual.collect::<Result<Vec<_>>>()?;
    for plan in plans {
        for name in &plan.at {
            let namespace = &topology.place(name)?.namespace;
            let name = format!("{name}{}", plan.suffix);
            servers.push(EchoServer::start(namespace, &name, plan.port, &plan.protocols)?);
        }
    }
    Ok(servers)
}
