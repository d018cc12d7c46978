//! The backend: a [`Proxier`] on the programs.
//!
//! A sync is [`incremental`] as long as the kernel is known to hold what was synced, and [`full`]
//! otherwise: at the start, after a failure, and on request. Either makes changes for each family,
//! and each family's changes go to one run of `iptables-restore`. The kernel commits each table's
//! changes as a whole.

mod compare;
mod full;
mod incremental;
mod other_flavour;
mod refused;
#[cfg(test)]
mod tests;

use std::{fs, mem, sync::Arc, time::Instant};

use async_trait::async_trait;
use switchyard_core::{
    config::NodeConfig,
    error::ErrorChain,
    model::{IpFamily, PerFamily, ServiceName},
    proxier::{
        self, Capabilities, Drift, Mode, Profile, Proxier, ProxierError, RefusedAttempt,
        RefusedParts, RuleCount, SyncReport,
    },
    state::{NodeState, State},
    transition::{Before, Transition},
};
use switchyard_kernel::xtables::{
    Changes, Dump, Fingerprint, InstalledPrograms, OwnChange, Programs, Table, TableRecord,
};

use self::{full::Snapshot, other_flavour::OtherFlavour};
use crate::{
    ChainNaming, IptablesConfig, ToolError, Tools,
    layout::{
        Context, LOOPBACK_V4, Settings, fixed,
        names::{self, ChainNames},
    },
    monitor::Monitor,
};

const BE_LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// Programs Services with iptables. See the [crate's documentation](crate).
///
/// All rules are a function of the resolved state (`layout`), which core remembers: the
/// backend keeps no rules.
#[derive(Debug)]
pub struct IptablesProxier {
    tools: Tools,
    settings: Settings,
    /// Whether the kernel can remember clients.
    has_affinity: bool,
    /// Whether the kernel is known to hold what was synced last.
    is_sure: bool,
    /// The families that the last sync programmed.
    programmed: PerFamily<bool>,
    /// The fingerprints of the tables after the last commit.
    record: Arc<TableRecord>,
    /// The number of rules in our chains, by family.
    owned: PerFamily<OwnedRules>,
    other_flavour: OtherFlavour,
    /// The work done in a sync of which a part was refused.
    unreported: SyncReport,
}

/// The numbers of rules in our chains of one family.
#[derive(Clone, Copy, Debug, Default)]
struct OwnedRules {
    filter: u64,
    nat: u64,
}

/// The backend. Endpoints are drawn at random, with the probabilities that their weights ask for: a
/// rule has no other way to choose that all nodes, or two connections in a row, would agree on.
pub(crate) const PROFILE: Profile = Profile {
    conflicts_with: &[Mode::NFTABLES, Mode::IPVS],
    capabilities: Capabilities::KUBE_PROXY.with_weights(),
    guards_loopback: true,
    ..Profile::new(Mode::IPTABLES)
};

/// Finds the programs for the families whose tables can be read on this node. Changes nothing.
pub(crate) fn find_tools(config: &IptablesConfig) -> Result<Tools, ProxierError> {
    let usable = choose_tools(config)?.usable();
    usable.map_err(|error| ProxierError::unusable(Mode::IPTABLES, error))
}

pub(crate) fn choose_tools(config: &IptablesConfig) -> Result<Tools, ProxierError> {
    let installed = InstalledPrograms::find(&config.programs);
    let chosen = installed.choose(config.flavour, config.families);
    chosen.map_err(|missing| ProxierError::unusable(Mode::IPTABLES, missing.reason))
}

/// Returns the input of `iptables-restore` that makes empty tables of a family hold `state`.
pub fn render(config: &IptablesConfig, state: &State, family: IpFamily) -> String {
    let settings = settings(config);
    let context = Context { family, settings: &settings, node: &state.node };
    full::plan(state, &context, &Dump::default(), Snapshot::Everything).to_text()
}

/// Whether conntrack calls TCP packets outside the window invalid: `nf_conntrack_tcp_be_liberal` is
/// 0.
fn is_strict() -> bool {
    !fs::read_to_string(BE_LIBERAL).is_ok_and(|text| text.trim() != "0")
}

fn settings(config: &IptablesConfig) -> Settings {
    Settings {
        mark: 1 << config.masquerade_bit,
        names: config.chains.names(),
        drops_invalid: is_strict() && !config.beneath_ipvs,
        beneath_ipvs: config.beneath_ipvs,
        exempt_mark: config.exempt_mark,
        only_translated: config.only_translated,
    }
}

impl IptablesProxier {
    /// Opens the backend with the programs of the flavour that the host uses. Changes nothing.
    pub fn new(config: IptablesConfig) -> Result<Self, ProxierError> {
        let tools = choose_tools(&config)?;
        Ok(Self::with_tools(config, tools))
    }

    /// Opens the backend with programs that were found before. Changes nothing.
    pub(crate) fn with_tools(config: IptablesConfig, tools: Tools) -> Self {
        // With names of its own, the backend is beneath a program that remembers clients itself.
        let has_affinity =
            config.chains != ChainNaming::KubeProxy || tools.has_match("recent") != Some(false);
        if !has_affinity {
            tracing::warn!("The kernel lacks xt_recent, by which clients are remembered");
        }
        Self {
            settings: settings(&config),
            has_affinity,
            tools,
            is_sure: false,
            programmed: PerFamily::default(),
            record: Arc::default(),
            owned: PerFamily::default(),
            other_flavour: OtherFlavour::default(),
            unreported: SyncReport::default(),
        }
    }

    fn sync_changes(
        &mut self,
        change: &Transition<'_>,
        refused: &mut Vec<RefusedAttempt>,
    ) -> Result<SyncReport, ProxierError> {
        let before = match change.before() {
            // Serving localhost takes more than rules.
            Some(before)
                if self.is_sure
                    && !change.is_resync()
                    && serves_localhost(before.node())
                        == serves_localhost(&change.after().node) =>
            {
                before
            }
            _ => return self.sync_full(change, refused),
        };
        let mut report = SyncReport::default();
        let tools = self.tools.clone();
        for programs in tools.iter().filter(|programs| change.programs(programs.family())) {
            let changes = incremental::plan(&self.settings, programs.family(), before, change);
            let print = Fingerprint::read(programs);
            match self.commit((programs, print), &changes, false, &mut report, refused) {
                Ok(()) => {}
                // A resync would wait for the lock as long again.
                Err(error @ ToolError::Locked { .. }) => {
                    self.is_sure = false;
                    return Err(self::error(error));
                }
                // Another program has changed rules that the changes rely on; or the host has a
                // problem, which the resync will show.
                Err(error) => {
                    tracing::warn!(
                        err = %ErrorChain(&error),
                        "Change rejected; resyncing"
                    );
                    return self.sync_full(change, refused);
                }
            }
        }
        Ok(report)
    }

    /// Removes the chains of the flavour that is not in use after a sync of these families.
    fn remove_other_flavour(&mut self, families: PerFamily<bool>, report: &mut SyncReport) {
        let owned = fixed::owned(self.settings.names);
        let remove = |families| self.tools.remove_other_flavour(families, &owned);
        if self.other_flavour.remove(Instant::now(), families, report, remove) {
            let flavour = self.tools.flavour().other();
            tracing::info!(%flavour, "Removed the chains of the flavour that is not in use");
        }
    }

    fn sync_full(
        &mut self,
        change: &Transition<'_>,
        refused: &mut Vec<RefusedAttempt>,
    ) -> Result<SyncReport, ProxierError> {
        let start = Instant::now();
        let drops_invalid = is_strict() && !self.settings.beneath_ipvs;
        let dropped_invalid = mem::replace(&mut self.settings.drops_invalid, drops_invalid);
        // What serving localhost takes, and the rule about invalid packets, are not among the
        // changes that `incremental` plans: a sync of them would blame another program.
        let known = change.before().filter(|before| {
            mem::take(&mut self.is_sure)
                && serves_localhost(before.node()) == serves_localhost(&change.after().node)
                && drops_invalid == dropped_invalid
        });
        let mut report = mem::take(&mut self.unreported);
        // These are counted anew.
        report.rules.clear();
        let mut parts = RefusedParts::default();
        let (mut failed, mut succeeded) = (None, false);
        let tools = self.tools.clone();
        for programs in tools.iter().filter(|programs| change.programs(programs.family())) {
            let family = programs.family();
            let known = known.filter(|_| *self.programmed.get(family));
            match self.compare_family(programs, change, known, &mut report, refused) {
                Ok(()) => succeeded = true,
                // The lock is the same for both families.
                Err(error @ ToolError::Locked { .. }) => {
                    self.unreported = report;
                    return Err(self::error(error));
                }
                Err(error) => {
                    let context =
                        Context { family, settings: &self.settings, node: &change.after().node };
                    let ports = refused::ports(change.after(), &context, &error);
                    if ports.is_empty() {
                        *parts.families.get_mut(family) = Some(ErrorChain(&error).to_string());
                    }
                    succeeded |= !ports.is_empty();
                    parts.ports.extend(ports);
                    failed = failed.or(Some(error));
                }
            }
        }
        if let Some(error) = failed {
            self.unreported = report;
            let error = self::error(error);
            // If nothing of any family can be programmed, something else is wrong.
            return Err(if succeeded { error.of_parts(parts) } else { error });
        }
        self.record.set_resynced(start);
        self.is_sure = true;
        self.programmed = PerFamily::from_fn(|family| change.programs(family));
        Ok(report)
    }

    /// Compares the tables of a family with what they should hold, and changes what differs. What
    /// they should have held may be `known`.
    fn compare_family(
        &mut self,
        programs: &Programs,
        change: &Transition<'_>,
        known: Option<Before<'_>>,
        report: &mut SyncReport,
        refused: &mut Vec<RefusedAttempt>,
    ) -> Result<(), ToolError> {
        let state = change.after();
        let family = programs.family();
        let context = Context { family, settings: &self.settings, node: &state.node };
        let print = Fingerprint::read(programs);
        let (dump, snapshot) = match programs.save() {
            Ok(dump) => (dump, Snapshot::Everything),
            // Another program has put rules into the same tables that iptables cannot print.
            Err(error @ ToolError::Incompatible { .. }) => {
                tracing::warn!(
                    %family,
                    err = %ErrorChain(&error),
                    "Failed to read the rules; rewriting all of them"
                );
                (programs.held_jumps(&fixed::jumps(&self.settings))?, Snapshot::Jumps)
            }
            Err(error) => return Err(error),
        };
        let known = known.filter(|_| snapshot == Snapshot::Everything);
        let localhost = context.serves_localhost().then(|| context.loopback());
        let changes = full::plan(state, &context, &dump, snapshot);
        if let Some(known) = known {
            let expected = incremental::plan(&self.settings, family, known, change);
            for (table, chain) in changes.unexpected(&expected) {
                report.drift.found(|| compare::describe(family, table, chain));
            }
        }
        self.commit((programs, print), &changes, true, report, refused)?;
        if let Some(loopback) = localhost {
            // A chain that the kubelet shares is not written without a full dump.
            if snapshot == Snapshot::Jumps
                && let Err(error) = guard_loopback(programs, loopback)
            {
                tracing::error!(err = %ErrorChain(&error), "Failed to guard loopback addresses");
                report.loopback_unguarded |= family == IpFamily::V4;
            }
        }
        Ok(())
    }

    /// Commits the changes of tables that had a fingerprint before they were `compared`, or now.
    fn commit(
        &mut self,
        (programs, before): (&Programs, Option<Fingerprint>),
        changes: &Changes,
        compared: bool,
        report: &mut SyncReport,
        refused: &mut Vec<RefusedAttempt>,
    ) -> Result<(), ToolError> {
        let family = programs.family();
        let text = changes.to_text();
        let mut has_waited = false;
        if !text.is_empty() {
            let restored = programs.restore(&text).inspect_err(|error| {
                if !matches!(error, ToolError::Locked { .. }) {
                    refused.push(RefusedAttempt { family, compared });
                }
            })?;
            let (added, removed) = changes.counts();
            report.added += added;
            report.removed += removed;
            report.bytes += text.len();
            report.messages += text.lines().count();
            report.commit += restored.commit;
            report.waited += restored.waited;
            has_waited = !restored.waited.is_zero();
            if has_waited {
                tracing::info!(waited = ?restored.waited, "Waited for the xtables lock");
            }
        }
        let after = Fingerprint::read(programs);
        let own = OwnChange { before, after, tables: changes.tables(), has_waited };
        match compared {
            true => self.record.set_intact(family, &own),
            false => self.record.set_changed(family, &own),
        }
        let owned = self.owned.get_mut(family);
        for (table, owned) in [(Table::Filter, &mut owned.filter), (Table::Nat, &mut owned.nat)] {
            // A resync counts all rules that exist.
            let before = if compared { 0 } else { *owned };
            *owned = before.saturating_add_signed(changes.owned(table));
            report.rules.push(RuleCount {
                family,
                table: table.name(),
                owned: *owned,
                written: changes.written(table),
            });
        }
        Ok(())
    }
}

fn error(error: ToolError) -> ProxierError {
    ProxierError::backend(Mode::IPTABLES, "cannot program the tables", error)
}

#[async_trait]
impl Proxier for IptablesProxier {
    fn profile(&self) -> Profile {
        let capabilities = match self.has_affinity {
            true => PROFILE.capabilities,
            false => PROFILE.capabilities.without_affinity(),
        };
        Profile { guards_loopback: self.tools.families().v4, capabilities, ..PROFILE }
    }

    /// Keeps other hosts from loopback addresses, if node ports are to be served on them.
    fn prepare(&mut self, node: &NodeConfig) -> Result<(), ProxierError> {
        if !node.serves_localhost() {
            return Ok(());
        }
        let mut programs = self.tools.iter().filter(|programs| programs.family() == IpFamily::V4);
        programs.try_for_each(|programs| guard_loopback(programs, LOOPBACK_V4)).map_err(|error| {
            ProxierError::backend(Mode::IPTABLES, "cannot guard loopback addresses", error)
        })
    }

    /// Blocks for as long as the programs take. After an error, the tables before the refused one
    /// have been changed: iptables cannot change several tables at once.
    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        let mut refused = Vec::new();
        match self.sync_changes(change, &mut refused) {
            Ok(mut report) => {
                report.refused = refused;
                let tools = self.tools.families();
                let synced = |family| *tools.get(family) && change.programs(family);
                self.remove_other_flavour(PerFamily::from_fn(synced), &mut report);
                Ok(report)
            }
            Err(error) => Err(error.after_attempts(refused)),
        }
    }

    fn compare(
        &mut self,
        state: &State,
        service: &ServiceName,
    ) -> Result<Option<Drift>, ProxierError> {
        let mut drift = Drift::default();
        let programs = self.tools.iter();
        for programs in programs.filter(|programs| *self.programmed.get(programs.family())) {
            let family = programs.family();
            let context = Context { family, settings: &self.settings, node: &state.node };
            let dump = programs.save().map_err(|error| {
                ProxierError::backend(Mode::IPTABLES, "cannot read the tables", error)
            })?;
            compare::find(state, service, &context, &dump, &mut drift);
        }
        Ok(Some(drift))
    }

    /// Removes all rules, of both flavours and both families, whichever program programmed them.
    /// Needs no programs.
    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        self.is_sure = false;
        self.record.clear();
        clean_up_chains(self.settings.names)
    }

    fn monitor(&self) -> Option<Box<dyn proxier::Monitor>> {
        Some(Box::new(Monitor::new(self.tools.clone(), &self.settings, self.record.clone())))
    }
}

/// Adds what keeps other hosts from the loopback addresses, as far as it is missing, one command
/// after the other: unlike a restore, that needs no full dump of the chain, which is shared with
/// the kubelet.
fn guard_loopback(programs: &Programs, loopback: &str) -> Result<(), ToolError> {
    let chain = (Table::Filter, names::FIREWALL);
    programs.add_missing(chain, &fixed::firewall_rule(loopback), &fixed::firewall_jumps())
}

fn serves_localhost(node: &NodeState) -> bool {
    node.node_ports.v4.has_loopback()
}

/// Whether there are chains of Services in the tables of iptables-legacy, which a proxy in iptables
/// mode has programmed. Changes nothing.
///
/// # Errors
/// If the kernel refuses to show a table.
pub fn legacy_service_chains() -> Result<bool, switchyard_kernel::xtables::LeftoverError> {
    switchyard_kernel::xtables::has_legacy_chains(Table::Nat, "KUBE-SVC-")
}

/// Removes the rules in chains of these names.
pub(crate) fn clean_up_chains(names: &ChainNames) -> Result<(), ProxierError> {
    let removed = switchyard_kernel::xtables::remove(&fixed::owned(names)).map(drop);
    removed.map_err(|error| ProxierError::backend(Mode::IPTABLES, "cannot remove all rules", error))
}
