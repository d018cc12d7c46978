//! The changes of the demo, in order, and the measurements.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use packet_rig::http;

use crate::{
    board::{Board, ProxyStatus, Refusals, Standing, State},
    cast::{DNS, WEB},
    display::Display,
    error::{DemoError, Result},
    findings::{Findings, ms},
    kernel::{self, RuleCount},
    manifests::Manifests,
    stop::Stop,
    switchyard::Switchyard,
    view::thousands,
    world::World,
};

/// The longest time for an effect that should take milliseconds.
const SOON: Duration = Duration::from_secs(5);

/// The endpoint of `web` that is added.
const ADDED: usize = 3;
/// The weight of that endpoint; the others have 1.
const WEIGHT: u16 = 7;
/// The endpoint of `web` that is removed.
const REMOVED: usize = 0;

/// A removal of an endpoint: when the file was renamed, and how many connections its Service had
/// had by then.
#[derive(Clone, Copy)]
struct Removal {
    renamed: Instant,
    reached: u64,
}

/// The parts that the script works with.
pub struct Stage<'a> {
    /// The network.
    pub world: &'a World,
    /// The files.
    pub manifests: &'a Manifests,
    /// The record of all connections and messages.
    pub board: &'a Arc<Board>,
    /// The screen.
    pub display: &'a mut Display,
    /// The request to stop.
    pub stop: &'a Stop,
}

impl Stage<'_> {
    /// Plays the whole script, with a proxy that is ready.
    pub fn play(&mut self, proxy: &mut Switchyard, ready: Duration) -> Result<Findings> {
        let mut findings = Findings::default();
        self.board.state().tallies[WEB].endpoints[ADDED].standing = Standing::Absent;
        self.board.state().proxy = ProxyStatus::Running(proxy.pid());
        self.say(format!(
            "switchyard (pid {}) follows the manifests: ready in {}",
            proxy.pid(),
            ms(ready)
        ));
        self.hold(1500)?;
        self.display.table();
        self.add_endpoint(&mut findings)?;
        self.weigh_endpoint(&mut findings)?;
        let removal = self.remove_endpoint(&mut findings)?;
        self.remove_all_endpoints(&mut findings)?;
        self.kill_proxy(proxy, &mut findings)?;
        self.check_removed(removal, &mut findings);
        self.add_endpoint_again(&mut findings)?;
        findings.rules = self.count_rules()?;
        Ok(findings)
    }

    fn count_rules(&self) -> Result<RuleCount> {
        Ok(kernel::count_rules(&self.world.node().namespace)?)
    }

    fn add_endpoint(&mut self, findings: &mut Findings) -> Result<()> {
        let (address, node) = self.web(ADDED);
        self.say(format!("web: scaling from 3 to 4 endpoints: {address} joins web.yaml"));
        findings.added = self.add(ADDED, &address, node)?;
        self.say(format!(
            "web: {} from the rename of the file to its first connection",
            ms(findings.added)
        ));
        self.hold(1000)?;
        self.board.set_standing(WEB, ADDED, Standing::Present);
        self.display.table_of(WEB);
        Ok(())
    }

    fn weigh_endpoint(&mut self, findings: &mut Findings) -> Result<()> {
        let (address, _) = self.web(ADDED);
        self.say(format!(
            "web: {address} gets the weight {WEIGHT}, by an annotation of the EndpointSlice"
        ));
        self.manifests.weigh("web.yaml", &address, WEIGHT)?;
        // Connections that have begun come first.
        self.hold(200)?;
        let before = self.web_connections();
        self.hold(1200)?;
        let after = self.web_connections();
        let (weighed, all) = (after.0 - before.0, after.1 - before.1);
        findings.weighed = 100.0 * weighed as f64 / all.max(1) as f64;
        self.say(format!(
            "web: {:.1} % of {} connections, of {WEIGHT} in {} that it weighs",
            findings.weighed,
            thousands(all),
            u64::from(WEIGHT) + 3
        ));
        self.manifests.weigh_evenly("web.yaml")?;
        self.hold(300)?;
        self.display.table_of(WEB);
        Ok(())
    }

    /// The connections to the endpoint of `web` that was added, and all connections to `web`.
    fn web_connections(&self) -> (u64, u64) {
        let state = self.board.state();
        let web = &state.tallies[WEB];
        (web.endpoints[ADDED].count, web.reached())
    }

    fn remove_endpoint(&mut self, findings: &mut Findings) -> Result<Removal> {
        let (address, _) = self.web(REMOVED);
        self.say(format!("web: endpoint {address} goes away"));
        let reached = self.board.state().tallies[WEB].reached();
        let renamed = self.manifests.remove("web.yaml", &address)?;
        let removal = Removal { renamed, reached };
        self.board.set_standing(WEB, REMOVED, Standing::Removed);
        self.hold(400)?;
        self.check_removed(removal, findings);
        self.say(match findings.removed {
            Some(last) => format!(
                "web: {} from the rename to its last connection; none of {} since",
                ms(last),
                thousands(findings.since_removed)
            ),
            None => format!("web: no connection reaches {address} after the rename"),
        });
        self.hold(700)?;
        self.display.table_of(WEB);
        Ok(removal)
    }

    /// Notes when the last connection reached the removed endpoint, as far as known now.
    fn check_removed(&self, Removal { renamed, reached }: Removal, findings: &mut Findings) {
        let state = self.board.state();
        let web = &state.tallies[WEB];
        let gone = &web.endpoints[REMOVED];
        findings.removed = gone.last.filter(|last| *last > renamed).map(|last| last - renamed);
        findings.since_removed = web.reached() - gone.reached_by_then.max(reached);
    }

    fn remove_all_endpoints(&mut self, findings: &mut Findings) -> Result<()> {
        self.say("dns: all endpoints go away".to_owned());
        self.board.set_all_standing(DNS, Standing::Removed);
        self.board.state().tallies[DNS].refusals = Refusals::Fine;
        let renamed = self.manifests.remove_all("dns.yaml")?;
        let refused = |state: &State| state.tallies[DNS].first_refused;
        findings.refused = self.wait("a refusal", refused)?.saturating_duration_since(renamed);
        self.say(format!(
            "dns: {} from the rename to the first connection refused",
            ms(findings.refused)
        ));
        self.hold(900)?;
        self.display.table_of(DNS);

        self.board.set_all_standing(DNS, Standing::Present);
        let renamed = self.manifests.restore("dns.yaml")?;
        let answered = |state: &State| {
            let endpoints = state.tallies[DNS].endpoints.iter();
            endpoints.filter_map(|one| one.first).filter(|first| *first > renamed).min()
        };
        let first = self.wait("an answer", answered)?;
        self.board.state().tallies[DNS].refusals = Refusals::OnlyBefore(Some(first));
        findings.restored = first.saturating_duration_since(renamed);
        self.say(format!(
            "dns: its endpoints are back: first answer after {}",
            ms(findings.restored)
        ));
        self.hold(400)
    }

    fn kill_proxy(&mut self, proxy: &mut Switchyard, findings: &mut Findings) -> Result<()> {
        let (reached, failed) = self.board.state().totals();
        let rules = self.count_rules()?;
        let pid = proxy.pid();
        let killed = Instant::now();
        proxy.kill();
        self.board.state().proxy = ProxyStatus::Killed;
        self.say(format!("switchyard (pid {pid}) is killed under load, with SIGKILL"));
        self.hold(500)?;
        let ready = proxy.start_again(self.stop)?;
        findings.outage = killed.elapsed();
        let pid = proxy.pid();
        self.board.state().proxy = ProxyStatus::Running(pid);
        // Connections that have begun count, too.
        self.hold(150)?;
        let (reached_now, failed_now) = self.board.state().totals();
        findings.during_outage = reached_now - reached;
        findings.failed_in_outage = failed_now - failed;
        let metrics = proxy.metrics()?;
        let sum = |name| http::metric_values(&metrics, name).iter().sum::<f64>() as u64;
        findings.sent =
            (sum("switchyard_transaction_messages_sum"), sum("switchyard_transaction_bytes_sum"));
        self.say(format!(
            "without it: {} connections, {} lost",
            thousands(findings.during_outage),
            findings.failed_in_outage
        ));
        findings.removed_rules = rules.rules.saturating_sub(self.count_rules()?.rules);
        self.say(format!("a new one (pid {pid}) is ready in {}", ms(ready)));
        let messages = findings.sent.0;
        self.say(format!("its messages to the kernel: {messages} ({})", findings.sent()));
        self.hold(500)
    }

    fn add_endpoint_again(&mut self, findings: &mut Findings) -> Result<()> {
        let (address, node) = self.web(REMOVED);
        self.display.restart_table();
        findings.added_again = self.add(REMOVED, &address, node)?;
        self.say(format!(
            "web: {address} comes back: first connection after {}",
            ms(findings.added_again)
        ));
        self.hold(800)?;
        self.display.table();
        Ok(())
    }

    /// Adds an endpoint of `web`, and returns the time from the rename to its first connection.
    fn add(&self, endpoint: usize, address: &str, node: u8) -> Result<Duration> {
        self.board.set_standing(WEB, endpoint, Standing::Added);
        let renamed = self.manifests.add("web.yaml", address, node)?;
        let first = |state: &State| state.tallies[WEB].endpoints[endpoint].first;
        let first = self.wait("a connection to the new endpoint", first)?;
        Ok(first.saturating_duration_since(renamed))
    }

    /// The address and node of an endpoint of `web`.
    fn web(&self, endpoint: usize) -> (String, u8) {
        let pod = self.board.state().tallies[WEB].endpoints[endpoint].pod;
        (pod.address(), pod.node)
    }

    fn say(&mut self, text: String) {
        self.display.say(text);
    }

    /// Lets traffic go on for some milliseconds.
    fn hold(&self, milliseconds: u64) -> Result<()> {
        self.stop.sleep(Duration::from_millis(milliseconds))
    }

    /// Waits until `look` returns a value.
    fn wait<T>(&self, what: &str, look: impl Fn(&State) -> Option<T>) -> Result<T> {
        let started = Instant::now();
        loop {
            if let Some(found) = look(&self.board.state()) {
                return Ok(found);
            }
            if started.elapsed() > SOON {
                return Err(DemoError::NotSeen(what.to_owned(), SOON.as_secs_f64()));
            }
            self.stop.sleep(Duration::from_millis(1))?;
        }
    }
}
