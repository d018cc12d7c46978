//! The changes of both shows, in order, and what is measured: lines of the summary.

use std::{
    thread,
    time::{Duration, Instant},
};

use packet_rig::{EchoServer, NetNs, Proxy, http};

use super::{
    Result,
    board::{Board, Outage, Standing, State},
    cast::{DNS, WEB},
    manifests::{self, Manifests},
    screen::Display,
    view::{bold, figure, ms, thousands, verdict},
};

/// The time for an effect that should take milliseconds, in seconds.
const SOON: u64 = 5;
/// The endpoint of `web` that is added, and its weight for a while; the others have 1.
const ADDED: usize = 3;
const WEIGHT: u16 = 7;
/// The endpoints of `web` that are removed, and that do not answer for a while.
const REMOVED: usize = 0;
pub const SILENT: usize = 1;

pub struct Script<'a> {
    pub manifests: Manifests,
    pub board: &'static Board,
    pub display: &'a mut Display,
}

impl Script<'_> {
    /// Plays the changes in the cluster, with a proxy that is ready, and returns figures.
    pub fn cluster(&mut self, node: &NetNs, proxy: &mut Proxy) -> Result<Vec<String>> {
        self.hold(1500);
        self.display.table(None);
        let mut lines = vec![bold("After the rename of a manifest")];
        lines.extend(self.change_endpoints()?);
        lines.push(self.remove_all_endpoints()?);
        lines.push(bold("Killed with SIGKILL, under load"));
        lines.extend(self.kill(proxy)?);
        lines.push(bold("In the kernel (nft list table ip kube-proxy)"));
        let (chains, rules) = count_rules(node)?;
        lines.push(figure(chains.to_string(), format!("chains, {rules} rules")));
        lines.push(self.flush(node)?);
        self.display.table(None);
        Ok(lines)
    }

    /// The same at loopback.
    pub fn loopback(&mut self, server: &mut EchoServer) -> Result<Vec<String>> {
        self.hold(2500);
        self.display.table(None);
        let mut lines = vec![bold("A server that did not answer, and was still listed")];
        lines.extend(self.silence(server)?);
        lines.push(bold("After the rename of a manifest"));
        lines.extend(self.change_endpoints()?);
        self.hold(1000);
        self.display.table(None);
        Ok(lines)
    }

    /// Adds the fourth endpoint of `web`, gives it more weight for a while, and removes the first.
    fn change_endpoints(&mut self) -> Result<[String; 3]> {
        let (address, node) = self.web(ADDED);
        self.say(format!("web: scaling from 3 to 4 endpoints: {address} joins web.yaml"));
        self.board.set_standing(WEB, Some(ADDED), Standing::Added);
        let with = |text: &str| manifests::with_endpoint(text, &address, node);
        let changed = self.manifests.change("web.yaml", with)?;
        let first = |state: &State| state.tallies[WEB].endpoints[ADDED].first;
        let first = self.board.wait(SOON, "a connection to the new endpoint", first)?;
        let added = ms(first.saturating_duration_since(changed));
        self.say(format!("web: {added} from the rename of the file to its first connection"));
        self.hold(1000);
        self.board.set_standing(WEB, Some(ADDED), Standing::Present);
        self.display.table(Some(WEB));

        self.say(format!("web: {address} gets the weight {WEIGHT}, by an annotation of its slice"));
        self.manifests.change("web.yaml", |text| manifests::with_weight(text, &address, WEIGHT))?;
        // Connections that have begun come first.
        self.hold(200);
        let counts = |state: &State| {
            let web = &state.tallies[WEB];
            (web.endpoints[ADDED].count, web.reached())
        };
        let before = counts(&self.board.state());
        self.hold(1200);
        let after = counts(&self.board.state());
        let (its, all) = (after.0 - before.0, after.1 - before.1);
        let share = format!("{:.1} %", 100.0 * its as f64 / all.max(1) as f64);
        let all = thousands(all);
        self.say(format!("web: {share} of {all} connections, of {WEIGHT} in 10 that it weighs"));
        self.manifests.change("web.yaml", manifests::without_weights)?;
        self.hold(300);
        self.display.table(Some(WEB));

        let (address, _) = self.web(REMOVED);
        self.say(format!("web: endpoint {address} goes away"));
        let reached = self.board.state().tallies[WEB].reached();
        let without = |text: &str| manifests::without_endpoint(text, &address);
        let removed = self.manifests.change("web.yaml", without)?;
        self.board.set_standing(WEB, Some(REMOVED), Standing::Removed);
        self.hold(1000);
        let web = self.board.state().tallies[WEB].clone();
        let gone = &web.endpoints[REMOVED];
        let last = gone.last.filter(|last| *last > removed).map(|last| ms(last - removed));
        let last = last.unwrap_or_else(|| "none".to_owned());
        let since = thousands(web.reached() - gone.reached_by_then.max(reached));
        self.say(format!("web: {last} to its last connection; none of {since} since"));
        self.display.table(Some(WEB));
        Ok([
            figure(added, "first connection to an added endpoint"),
            figure(share, "of connections to an endpoint of 4 with 7 tenths of the weight"),
            figure(last, format!("last connection to a removed one; {since} since, none to it")),
        ])
    }

    /// Takes all endpoints of `dns` away, and puts them back.
    fn remove_all_endpoints(&mut self) -> Result<String> {
        self.say("dns: all endpoints go away");
        self.board.set_standing(DNS, None, Standing::Removed);
        let later = Instant::now() + Duration::from_secs(3600);
        self.board.state().tallies[DNS].refusals_until = Some(later);
        let without = |text: &str| manifests::without_endpoint(text, "");
        let changed = self.manifests.change("dns.yaml", without)?;
        let refused = |state: &State| state.tallies[DNS].first_refused;
        let refused = ms(self.board.wait(SOON, "a refusal", refused)? - changed);
        self.say(format!("dns: {refused} from the rename to the first connection refused"));
        self.hold(900);
        self.display.table(Some(DNS));

        self.board.set_standing(DNS, None, Standing::Present);
        let changed = self.manifests.restore("dns.yaml")?;
        let answered = |state: &State| {
            let endpoints = state.tallies[DNS].endpoints.iter();
            endpoints.filter_map(|one| one.first).filter(|first| *first > changed).min()
        };
        let first = self.board.wait(SOON, "an answer", answered)?;
        self.board.state().tallies[DNS].refusals_until = Some(first);
        let back = ms(first - changed);
        self.say(format!("dns: its endpoints are back: first answer after {back}"));
        self.hold(400);
        let what = format!("first refusal, without endpoints; first answer, with them: {back}");
        Ok(figure(refused, what))
    }

    /// Kills the proxy under load, and starts it again.
    fn kill(&mut self, proxy: &mut Proxy) -> Result<[String; 3]> {
        let before = self.board.state().totals();
        let pid = proxy.pid().unwrap_or_default();
        let killed = Instant::now();
        proxy.kill();
        self.board.state().proxy = Some(0);
        self.say(format!("switchyard (pid {pid}) is killed under load, with SIGKILL"));
        self.hold(500);
        let started = Instant::now();
        proxy.start_again()?;
        proxy.wait_ready(super::READY)?;
        let (outage, ready) = (ms(killed.elapsed()), ms(started.elapsed()));
        let pid = proxy.pid().unwrap_or_default();
        self.board.state().proxy = Some(pid);
        // Connections that have begun count, too.
        self.hold(150);
        let after = self.board.state().totals();
        let (reached, lost) = (thousands(after.0 - before.0), after.1 - before.1);
        self.say(format!("without it: {reached} connections, {lost} lost"));
        let sent = http::metric_values(&proxy.metrics()?, "switchyard_transaction_messages_sum");
        let sent = thousands(sent.iter().sum::<f64>() as u64);
        self.say(format!(
            "a new one (pid {pid}) is ready in {ready}: {sent} messages to the kernel"
        ));
        // A repair waits until a second after a full sync, and the start was one.
        self.hold(1100);
        Ok([
            figure(outage, "until a new process was ready"),
            figure(reached, format!("connections in this time; lost: {}", verdict(lost))),
            figure(sent, "messages to the kernel: unused chains go"),
        ])
    }

    /// Flushes the proxy's rules, as another program might, and lets the proxy repair them.
    fn flush(&mut self, node: &NetNs) -> Result<String> {
        let rules = count_rules(node)?;
        let began = Instant::now();
        self.board.state().outage = Some(Outage { began, lost: 0, last: began });
        self.say("another program runs: nft flush chain ip kube-proxy services");
        node.nft("flush chain ip kube-proxy services\n")?;
        while count_rules(node)? != rules {
            if began.elapsed() > Duration::from_secs(SOON) {
                return Err("the flushed chain was not repaired".into());
            }
            self.hold(20);
        }
        let repaired = Instant::now();
        self.hold(200);
        let outage = self.board.state().outage.take();
        let (lost, last) = outage.map_or((0, began), |outage| (outage.lost, outage.last));
        let (took, last, rules) = (ms(repaired - began), ms(last - began), rules.1);
        self.say(format!("its {rules} rules are back: {lost} lost, the last after {last}"));
        self.hold(500);
        Ok(figure(
            took,
            format!("until all were back after a flush; {lost} lost, the last at {last}"),
        ))
    }

    /// Lets a server answer nothing for a while.
    fn silence(&mut self, server: &mut EchoServer) -> Result<[String; 3]> {
        let (address, _) = self.web(SILENT);
        let before = self.board.state().tallies[WEB].clone();
        self.say(format!("web: {address} stops answering; web.yaml still lists it"));
        // What a server has accepted and not answered is lost with the server, whoever forwards it.
        // So the server stops between two connections.
        let pause = self.board.gate.write();
        server.silence()?;
        self.board.set_standing(WEB, Some(SILENT), Standing::Silent);
        drop(pause);
        self.hold(3000);
        let now = self.board.state().tallies[WEB].clone();
        let (reached, failed) = (now.reached() - before.reached(), now.failed() - before.failed());
        let (reached, waited) = (thousands(reached), now.slow - before.slow);
        self.say(format!("web: of {reached} connections, {failed} failed; {waited} took the next"));
        self.say("web: the others did not wait: after two failures it is left out");
        self.display.table(Some(WEB));
        self.hold(800);

        let answering = Instant::now();
        server.answer_again()?;
        self.board.set_standing(WEB, Some(SILENT), Standing::Added);
        self.say(format!("web: {address} answers again"));
        let first = |state: &State| state.tallies[WEB].endpoints[SILENT].first;
        // It is left out for some seconds, longer each time that it does not answer.
        let back = self.board.wait(20, "a connection to the endpoint that is back", first)?;
        let back = format!("{:.1} s", (back - answering).as_secs_f64());
        self.say(format!("web: {back} until the next trial, which succeeds: it is back"));
        self.hold(1200);
        self.board.set_standing(WEB, Some(SILENT), Standing::Present);
        self.display.table(Some(WEB));
        Ok([
            figure(reached, format!("connections in this time; failed: {}", verdict(failed))),
            figure(waited.to_string(), "of them waited for it, and took the next endpoint"),
            figure(back, "first connection to it, once it answered again"),
        ])
    }

    fn web(&self, endpoint: usize) -> (String, u8) {
        let endpoint = &self.board.state().tallies[WEB].endpoints[endpoint];
        (endpoint.address.to_string(), endpoint.node)
    }

    fn say(&mut self, text: impl Into<String>) {
        self.display.say(text);
    }

    fn hold(&self, milliseconds: u64) {
        thread::sleep(Duration::from_millis(milliseconds));
    }
}

/// Counts the chains and rules of `table ip kube-proxy`: every line of a chain is a rule, except
/// the declaration of the chain.
fn count_rules(node: &NetNs) -> Result<(usize, usize)> {
    let listing = node.output("nft", &["--stateless", "list", "table", "ip", "kube-proxy"], "")?;
    let (mut chains, mut rules, mut in_chain) = (0, 0, false);
    for line in listing.lines().map(str::trim) {
        let is_start = line.starts_with("chain ");
        let is_declaration = line.starts_with("type ") || line.starts_with("comment ");
        chains += usize::from(is_start);
        in_chain = is_start || in_chain && line != "}";
        rules += usize::from(in_chain && !is_start && !is_declaration && !line.is_empty());
    }
    Ok((chains, rules))
}
