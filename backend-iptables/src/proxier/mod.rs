//! The backend: a [`Proxier`] on the programs.
//!
//! A sync is [`incremental`] as long as we know what the kernel holds, and [`full`] otherwise: at
//! the start, after a failure, and when asked for. Either makes changes for each family, and each
//! family's changes go to one run of `iptables-restore`. The kernel takes each table's changes as a
//! whole.

mod full;
mod incremental;

use std::{
    collections::HashMap,
    fs, io,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use proxy_core::{
    model::{IpFamily, PerFamily, ServiceName, ServicePortId},
    proxier::{self, Proxier, ProxierError, SyncReport},
    state::{Delta, HealthCheck, NodeState, ResolvedServicePort, State},
};

use crate::{
    Flavour, IptablesConfig, MODE, Stats, ToolError,
    layout::{Context, Settings, names::chain},
    leftovers,
    monitor::{Fingerprint, Monitor, Seen},
    tool::{Programs, dump::Dump, find::Installed, input::Changes, run},
};

const BE_LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// What the kernel holds, as we remember it between syncs: the Service ports as they were resolved
/// (shared with whoever resolved them). All rules are a function of these ([`crate::layout`]).
#[derive(Debug, Default)]
struct Memory {
    ports: HashMap<ServicePortId, Arc<ResolvedServicePort>>,
    node: NodeState,
    health_checks: HashMap<ServiceName, HealthCheck>,
}

/// Programs Services with iptables. See the [crate's documentation](crate).
#[derive(Debug)]
pub struct IptablesProxier {
    config: IptablesConfig,
    installed: Installed,
    flavour: Flavour,
    settings: Settings,
    /// What the kernel holds; `None` if we cannot tell.
    memory: Option<Memory>,
    /// How long we have waited for others' locks.
    waited: Duration,
    /// What the tables looked like when we left them.
    seen: Arc<Seen>,
    stats: Arc<Stats>,
}

/// Which of the families this node can program with the backend, or what is missing if it is none.
/// It changes nothing.
pub fn probe(config: &IptablesConfig) -> Result<PerFamily<bool>, ProxierError> {
    Ok(IptablesProxier::new(config.clone())?.usable()?.families())
}

/// What `iptables-restore` is told to make empty tables of a family hold `state`.
pub fn render(config: &IptablesConfig, state: &State, family: IpFamily) -> String {
    let settings = settings(config);
    let context = Context { family, settings: &settings, node: &state.node };
    full::plan(state, &context, &Dump::default()).to_text()
}

fn settings(config: &IptablesConfig) -> Settings {
    let be_liberal = fs::read_to_string(BE_LIBERAL).is_ok_and(|text| text.trim() != "0");
    Settings {
        mark: 1 << config.masquerade_bit,
        localhost_node_ports: config.localhost_node_ports,
        drops_invalid: !be_liberal,
    }
}

fn unsupported(reason: String) -> ProxierError {
    ProxierError::Unsupported { mode: MODE, reason }
}

fn error(message: &str, error: ToolError) -> ProxierError {
    ProxierError::Backend { mode: MODE, message: message.to_owned(), source: Some(Box::new(error)) }
}

impl IptablesProxier {
    /// Makes the backend, if the node has the programs. Finds out which flavour the host uses;
    /// changes nothing.
    pub fn new(config: IptablesConfig) -> Result<Self, ProxierError> {
        let installed = Installed::look(config.programs.as_deref());
        let wanted = config.families;
        let chosen = installed.choose_for_most(config.flavour, wanted).map_err(unsupported)?;
        let (flavour, families) = chosen;
        let config = IptablesConfig { families, ..config };
        let settings = settings(&config);
        let seen = Arc::default();
        Ok(Self {
            config,
            installed,
            flavour,
            settings,
            memory: None,
            waited: Duration::ZERO,
            seen,
            stats: Arc::default(),
        })
    }

    /// The backend for those families whose tables can be read here: one of them may lack its
    /// programs or its modules.
    ///
    /// # Errors
    /// If no family's can.
    pub fn usable(mut self) -> Result<Self, ProxierError> {
        let mut families = PerFamily::default();
        let mut first = None;
        for programs in self.programs() {
            // Whether the chain is there or not: the table can be read, so privileges and modules
            // are.
            match run::check(programs, &["-t", "nat", "-n", "-L", chain::CANARY]) {
                Ok(_) => *families.of_mut(programs.family) = true,
                Err(error) => {
                    let (family, reason) = (programs.family, error.to_string());
                    tracing::info!(%family, reason, "iptables cannot be used for the family");
                    first.get_or_insert(reason);
                }
            }
        }
        self.config.families = families;
        match (families.v4 || families.v6, first) {
            (true, _) => Ok(self),
            (false, reason) => Err(unsupported(reason.unwrap_or_default())),
        }
    }

    /// The flavour in use.
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// The families that are programmed.
    pub fn families(&self) -> PerFamily<bool> {
        self.config.families
    }

    /// For how long syncs have waited, in total, because another program held the xtables lock.
    pub fn time_waited(&self) -> Duration {
        self.waited
    }

    /// What is counted while it works.
    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    fn programs(&self) -> impl Iterator<Item = &Programs> {
        self.config.families().filter_map(|family| self.installed.of(self.flavour, family))
    }

    fn sync_changes(&mut self, state: &State, delta: &Delta) -> Result<SyncReport, ToolError> {
        let memory = match &self.memory {
            // Serving localhost takes more than rules of our own.
            Some(memory)
                if self.serves_localhost(&memory.node) == self.serves_localhost(&state.node) =>
            {
                memory
            }
            _ => return self.sync_full(state, delta),
        };
        let mut report = SyncReport::default();
        let mut waited = Duration::ZERO;
        let result: Result<(), ToolError> = self.programs().try_for_each(|programs| {
            let changes = incremental::plan(&self.settings, programs.family, memory, state, delta);
            let before = Fingerprint::read(programs);
            waited += self.commit(programs, &changes, false, &mut report)?;
            self.seen.follow(programs.family, before, Fingerprint::read(programs));
            Ok(())
        });
        self.waited += waited;
        match result {
            Ok(()) => {
                self.remember(state, delta);
                Ok(report)
            }
            // Somebody has changed what we rely on; or the host has a problem, which will show.
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "Comparing everything, as a change was refused");
                self.sync_full(state, delta)
            }
        }
    }

    fn serves_localhost(&self, node: &NodeState) -> bool {
        let settings = &self.settings;
        Context { family: IpFamily::V4, settings, node }.serves_localhost()
    }

    fn sync_full(&mut self, state: &State, delta: &Delta) -> Result<SyncReport, ToolError> {
        let start = Instant::now();
        let known = self.memory.take();
        let mut report = SyncReport::default();
        let mut waited = Duration::ZERO;
        let result: Result<(), ToolError> = self.programs().try_for_each(|programs| {
            let context =
                Context { family: programs.family, settings: &self.settings, node: &state.node };
            if context.serves_localhost()
                && let Err(error) = route_localnet()
            {
                let error: &dyn std::error::Error = &error;
                tracing::error!(
                    error,
                    "Node ports cannot be reached at loopback addresses: \
                     {ROUTE_LOCALNET} cannot be set"
                );
            }
            let dump = run::save(programs)?;
            let changes = full::plan(state, &context, &dump);
            if let Some(known) = &known {
                let expected =
                    incremental::plan(&self.settings, programs.family, known, state, delta);
                changes.tell_drift(programs.family, &expected, &mut report.drift);
            }
            waited += self.commit(programs, &changes, true, &mut report)?;
            self.seen.set(programs.family, Fingerprint::read(programs));
            Ok(())
        });
        self.waited += waited;
        result?;
        self.seen.compared(start);
        self.memory = Some(Memory {
            ports: state.service_ports.clone(),
            node: state.node.clone(),
            health_checks: state.health_checks.clone(),
        });
        Ok(report)
    }

    /// Makes the changes; returns how long that waited for the lock.
    fn commit(
        &self,
        programs: &Programs,
        changes: &Changes,
        is_full: bool,
        report: &mut SyncReport,
    ) -> Result<Duration, ToolError> {
        let text = changes.to_text();
        if text.is_empty() {
            self.stats.committed(programs.family, changes, is_full);
            return Ok(Duration::ZERO);
        }
        let restored = run::restore(programs, &text)
            .inspect_err(|_| self.stats.failed(programs.family, is_full))?;
        self.stats.committed(programs.family, changes, is_full);
        let (added, removed) = changes.counts();
        report.added += added;
        report.removed += removed;
        report.bytes += text.len();
        report.messages += text.lines().count();
        report.commit += restored.commit;
        if !restored.waited.is_zero() {
            tracing::info!(waited = ?restored.waited, "Waited for the xtables lock");
        }
        Ok(restored.waited)
    }

    fn remember(&mut self, state: &State, delta: &Delta) {
        let Some(memory) = &mut self.memory else { return };
        for id in &delta.service_ports {
            match state.service_ports.get(id) {
                Some(port) => memory.ports.insert(id.clone(), port.clone()),
                None => memory.ports.remove(id),
            };
        }
        if delta.node {
            memory.node = state.node.clone();
        }
        if delta.health_checks {
            memory.health_checks = state.health_checks.clone();
        }
    }
}

#[async_trait]
impl Proxier for IptablesProxier {
    fn mode(&self) -> &'static str {
        MODE
    }

    /// Blocks for as long as the programs take. After an error, tables that were programmed
    /// before the one that was refused have been changed: iptables cannot change several at once.
    async fn sync(&mut self, state: &State, delta: &Delta) -> Result<SyncReport, ProxierError> {
        let waited_before = self.waited;
        let result = match delta.full {
            true => self.sync_full(state, delta),
            false => self.sync_changes(state, delta),
        };
        result
            .map(|report| SyncReport { waited: self.waited - waited_before, ..report })
            .map_err(|refusal| error("cannot program the tables", refusal))
    }

    /// [`cleanup`]
    async fn cleanup(&mut self) -> Result<(), ProxierError> {
        self.memory = None;
        self.seen.clear();
        cleanup()
    }

    fn monitor(&self) -> Option<Box<dyn proxier::Monitor>> {
        Some(Box::new(Monitor::new(self.programs().cloned().collect(), self.seen.clone())))
    }
}

/// Removes the rules of both flavours and both families, whoever programmed them. Needs no
/// programs.
pub fn cleanup() -> Result<(), ProxierError> {
    leftovers::remove().map_err(|refusal| ProxierError::Backend {
        mode: MODE,
        message: "cannot remove all rules".to_owned(),
        source: Some(Box::new(refusal)),
    })
}

/// Has the kernel route what comes from loopback addresses and is translated, which node ports on
/// them need. Writes nothing if it does already.
pub fn route_localnet() -> io::Result<()> {
    match fs::read_to_string(ROUTE_LOCALNET) {
        Ok(text) if text.trim() == "1" => Ok(()),
        _ => fs::write(ROUTE_LOCALNET, "1"),
    }
}
