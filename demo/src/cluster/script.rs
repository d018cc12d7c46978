//! The changes of the act, in order, and the measurements.

use std::time::{Duration, Instant};

use packet_rig::http;

use super::{
    findings::Findings,
    kernel::{self, RuleCount},
    switchyard::Switchyard,
    world::World,
};
use crate::{
    board::{ProxyStatus, Refusals, Standing, State},
    cast::{DNS, WEB},
    error::Result,
    stage::{ADDED, Stage},
    view::{ms, thousands},
};

/// The stage, and the network on it.
pub struct Cluster<'a> {
    /// What every act works with.
    pub stage: Stage<'a>,
    /// The network.
    pub world: &'a World,
}

impl Cluster<'_> {
    /// Plays the whole script, with a proxy that is ready.
    pub fn play(&mut self, proxy: &mut Switchyard, ready: Duration) -> Result<Findings> {
        let mut findings = Findings::default();
        let stage = &mut self.stage;
        stage.board.state().tallies[WEB].endpoints[ADDED].standing = Standing::Absent;
        stage.board.state().proxy = ProxyStatus::Running(proxy.pid());
        stage.say(format!(
            "switchyard (pid {}) follows the manifests: ready in {}",
            proxy.pid(),
            ms(ready)
        ));
        stage.hold(1500)?;
        stage.display.table();
        stage.add_endpoint(&mut findings.changes)?;
        stage.weigh_endpoint(&mut findings.changes)?;
        let removal = stage.remove_endpoint(&mut findings.changes)?;
        self.remove_all_endpoints(&mut findings)?;
        self.kill_proxy(proxy, &mut findings)?;
        self.stage.check_removed(removal, &mut findings.changes);
        findings.added_again = self.stage.add_endpoint_again()?;
        findings.rules = self.count_rules()?;
        Ok(findings)
    }

    fn count_rules(&self) -> Result<RuleCount> {
        Ok(kernel::count_rules(&self.world.node().namespace)?)
    }

    fn remove_all_endpoints(&mut self, findings: &mut Findings) -> Result<()> {
        self.stage.say("dns: all endpoints go away".to_owned());
        self.stage.board.set_all_standing(DNS, Standing::Removed);
        self.stage.board.state().tallies[DNS].refusals = Refusals::Fine;
        let renamed = self.stage.manifests.remove_all("dns.yaml")?;
        let refused = |state: &State| state.tallies[DNS].first_refused;
        findings.refused =
            self.stage.wait("a refusal", refused)?.saturating_duration_since(renamed);
        self.stage.say(format!(
            "dns: {} from the rename to the first connection refused",
            ms(findings.refused)
        ));
        self.stage.hold(900)?;
        self.stage.display.table_of(DNS);

        self.stage.board.set_all_standing(DNS, Standing::Present);
        let renamed = self.stage.manifests.restore("dns.yaml")?;
        let answered = |state: &State| {
            let endpoints = state.tallies[DNS].endpoints.iter();
            endpoints.filter_map(|one| one.first).filter(|first| *first > renamed).min()
        };
        let first = self.stage.wait("an answer", answered)?;
        self.stage.board.state().tallies[DNS].refusals = Refusals::OnlyBefore(Some(first));
        findings.restored = first.saturating_duration_since(renamed);
        self.stage.say(format!(
            "dns: its endpoints are back: first answer after {}",
            ms(findings.restored)
        ));
        self.stage.hold(400)
    }

    fn kill_proxy(&mut self, proxy: &mut Switchyard, findings: &mut Findings) -> Result<()> {
        let (reached, failed) = self.stage.board.state().totals();
        let rules = self.count_rules()?;
        let pid = proxy.pid();
        let killed = Instant::now();
        proxy.kill();
        self.stage.board.state().proxy = ProxyStatus::Killed;
        self.stage.say(format!("switchyard (pid {pid}) is killed under load, with SIGKILL"));
        self.stage.hold(500)?;
        let ready = proxy.start_again(self.stage.stop)?;
        findings.outage = killed.elapsed();
        let pid = proxy.pid();
        self.stage.board.state().proxy = ProxyStatus::Running(pid);
        // Connections that have begun count, too.
        self.stage.hold(150)?;
        let (reached_now, failed_now) = self.stage.board.state().totals();
        findings.during_outage = reached_now - reached;
        findings.failed_in_outage = failed_now - failed;
        let metrics = proxy.metrics()?;
        let sum = |name| http::metric_values(&metrics, name).iter().sum::<f64>() as u64;
        findings.sent =
            (sum("switchyard_transaction_messages_sum"), sum("switchyard_transaction_bytes_sum"));
        self.stage.say(format!(
            "without it: {} connections, {} lost",
            thousands(findings.during_outage),
            findings.failed_in_outage
        ));
        findings.removed_rules = rules.rules.saturating_sub(self.count_rules()?.rules);
        self.stage.say(format!("a new one (pid {pid}) is ready in {}", ms(ready)));
        let messages = findings.sent.0;
        self.stage.say(format!("its messages to the kernel: {messages} ({})", findings.sent()));
        self.stage.hold(500)
    }
}
