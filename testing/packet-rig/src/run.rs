//! Runs a case: starts its rig, and checks step by step.

use std::{
    collections::BTreeMap,
    env,
    net::IpAddr,
    os::unix::process::ExitStatusExt,
    thread,
    time::{Duration, Instant},
};

use crate::{
    case::{Case, MANIFESTS, OpenPlan, ProxyAction, Step, StillPlan},
    conversation::Conversation,
    error::{Result, RigError, chain},
    flows::forget_flows,
    outcome::Outcome,
    probe::Probe,
    rig::Rig,
    subject::Subject,
    wait::scaled,
};

/// The longest time for an answer over a kept connection.
const ANSWER: Duration = Duration::from_secs(2);

/// The time after a change for which requests over a kept flow are repeated.
const SETTLE: Duration = Duration::from_secs(5);

/// Set to a number of seconds: when a case fails, its network stays for so long, and commands
/// that look into it are printed.
pub const KEEP: &str = "PACKET_RIG_KEEP";

/// Why a case has failed, as a report for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The proxy does not do what the case expects, or does not serve.
    Proxy(String),
    /// The rig could not make the network, or change the network as a step asks.
    Rig(String),
}

impl Failure {
    fn map(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Proxy(report) => Self::Proxy(change(report)),
            Self::Rig(report) => Self::Rig(change(report)),
        }
    }

    /// The difference, without what helps to find out why.
    pub fn sentence(&self) -> &str {
        let mut lines = self.report().lines();
        let first = lines.next().unwrap_or_default();
        lines.next().unwrap_or(first)
    }

    pub fn report(&self) -> &str {
        match self {
            Self::Proxy(report) | Self::Rig(report) => report,
        }
    }
}

impl From<RigError> for Failure {
    fn from(error: RigError) -> Self {
        let report = chain(&error);
        match error {
            RigError::Proxy(_) => Self::Proxy(report),
            _ => Self::Rig(report),
        }
    }
}

/// Runs `case` with a proxy.
pub fn run_case(case: &Case, subject: &Subject) -> Result<(), Failure> {
    let rig = Rig::of(case, subject)?;
    let mut running = Running { rig, open: BTreeMap::new() };
    let result = running.rig.start_again().map_err(Failure::from);
    let result = result.and_then(|()| running.follow(case));
    result.map_err(|failure| {
        let failure = failure.map(|message| {
            format!("{}\n{message}\n{}", case.title, running.rig.proxy.diagnostics())
        });
        running.keep_open(failure.report());
        failure
    })
}

struct Running {
    rig: Rig,
    /// Connections that are kept, by their names.
    open: BTreeMap<String, Conversation>,
}

impl Running {
    fn follow(&mut self, case: &Case) -> Result<(), Failure> {
        let at_first = |message| Failure::Proxy(format!("at first: {message}"));
        self.rig.check(&case.probes).map_err(at_first)?;
        self.rig.check_shares(&case.shares).map_err(at_first)?;
        self.rig.check_http(&case.http).map_err(at_first)?;
        self.open_all(&case.open).map_err(at_first)?;
        for step in &case.steps {
            self.change(step)
                .map_err(Failure::from)
                .and_then(|()| self.check(step).map_err(Failure::Proxy))
                .map_err(|failure| {
                    failure.map(|message| format!("after \"{}\": {message}", step.title))
                })?;
        }
        Ok(())
    }

    fn change(&mut self, step: &Step) -> Result<()> {
        let node = &self.rig.topology.node().namespace;
        if !step.node_ip.is_empty() {
            node.ip(&step.node_ip)?;
        }
        if !step.node_nft.is_empty() {
            node.nft(&step.node_nft)?;
        }
        if step.forget_flows {
            forget_flows(node)?;
        }
        if let Some(text) = &step.manifests {
            self.rig.write(MANIFESTS, text)?;
        }
        for (name, text) in &step.files {
            match text {
                Some(text) => self.rig.write(name, text)?,
                None => self.rig.remove(name)?,
            }
        }
        for action in &step.proxy {
            match action {
                ProxyAction::Stop => match self.rig.proxy.stop() {
                    Some(status) if status.signal() != Some(libc::SIGKILL) => {}
                    status => {
                        let message = format!("did not end by SIGTERM ({status:?})");
                        return Err(RigError::Proxy(message));
                    }
                },
                ProxyAction::Kill => self.rig.proxy.kill(),
                ProxyAction::Start => self.rig.start_again()?,
            }
        }
        thread::sleep(step.pause());
        Ok(())
    }

    fn check(&mut self, step: &Step) -> Result<(), String> {
        self.rig.check(&step.probes)?;
        self.rig.check_shares(&step.shares)?;
        self.rig.check_http(&step.http)?;
        for plan in &step.still {
            self.ask_again(plan)?;
        }
        self.open_all(&step.open)
    }

    fn open_all(&mut self, plans: &[OpenPlan]) -> Result<(), String> {
        for plan in plans {
            let opened = self.open(plan).map_err(|error| chain(&error))?;
            self.open.insert(plan.name.clone(), opened);
            let OpenPlan { name, reaches, seen, .. } = plan.clone();
            self.ask_again(&StillPlan { name, reaches, seen })?;
        }
        Ok(())
    }

    fn open(&self, plan: &OpenPlan) -> Result<Conversation> {
        let place = self.rig.place(&plan.from)?;
        let source_port = plan.source_port;
        let probe = Probe { source_port, timeout: scaled(ANSWER), ..Probe::new(plan.to) };
        let what = format!("open {} from {} to {}", plan.name, plan.from, plan.to);
        place.namespace.run(|| probe.converse())?.map_err(RigError::io(what))
    }

    /// Makes requests over a kept connection until the answer is the expected one: a UDP flow
    /// may move a little after a change.
    fn ask_again(&mut self, plan: &StillPlan) -> Result<(), String> {
        let StillPlan { name, reaches, seen } = plan;
        let open = self.open.get_mut(name).ok_or_else(|| format!("nothing is open as {name}"))?;
        let deadline = Instant::now() + scaled(SETTLE);
        loop {
            let outcome = open.outcome();
            if is_expected(&outcome, reaches, *seen) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let seen = seen.map(|seen| format!(", which sees {seen}")).unwrap_or_default();
                return Err(format!("{name}: expected {reaches}{seen}, got {outcome}"));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Keeps the network for the time that the environment asks for, so that people can look at it.
    fn keep_open(&self, report: &str) {
        let seconds = env::var(KEEP).ok().and_then(|text| text.parse().ok());
        if let Some(seconds) = seconds {
            let commands = self.rig.topology.nsenter_commands();
            eprintln!("{report}\nkept for {seconds} s:\n{commands}");
            thread::sleep(Duration::from_secs(seconds));
        }
    }
}

fn is_expected(outcome: &Outcome, by: &str, seen_as: Option<IpAddr>) -> bool {
    match outcome {
        Outcome::Reached { endpoint, seen } => {
            endpoint == by && seen_as.is_none_or(|address| seen.ip() == address)
        }
        _ => false,
    }
}
