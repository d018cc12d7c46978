//! The changes of both shows, in order, and the measurements, each of which is a line of the
//! summary.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use packet_rig::{EchoServer, NetNs, Proxy, http};

use super::{
    Result,
    board::{Board, Outage, Standing, State},
    cast::{DNS, WEB},
    manifests::{self, Manifests},
    screen::Display,
    traffic::Traffic,
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

/// The parts of a show.
pub struct Script<'a> {
    pub manifests: Manifests,
    pub board: &'a Arc<Board>,
    pub display: &'a mut Display,
}

impl Script<'_> {
    /// Plays the changes in the cluster, with a proxy that is ready, and returns figures.
    pub fn cluster(&mut self, node: &NetNs, proxy: &mut Proxy) -> Result<Vec<String>> {
        self.hold(1500)?;
        self.display.table(None);
        let mut lines = vec![bold(match self.manifests.kubeconfig() {
            Some(_) => "After the request to a genuine API server",
            None => "After the rename of a manifest",
        })];
        lines.push(self.add_endpoint()?);
        let weighed = self.weigh_endpoint()?;
        let removed = self.remove_endpoint()?;
        let refused = self.remove_all_endpoints()?;
        let killed = self.kill(node, proxy)?;
        let flushed = self.flush(node)?;
        lines.extend([self.last_connection(removed).0, weighed, refused]);
        lines.push(bold("Killed with SIGKILL, under load"));
        lines.extend(killed);
        let again = self.add_again()?;
        lines.push(figure(ms(again), "first connection to an endpoint that was added then"));
        lines.push(bold("In the kernel (nft list table ip kube-proxy)"));
        let (chains, rules) = count_rules(node)?;
        lines.push(figure(chains.to_string(), format!("chains, {rules} rules")));
        lines.push(flushed);
        Ok(lines)
    }

    /// Plays the changes at loopback, with a proxy that is ready, and returns figures.
    pub fn loopback(&mut self, traffic: &Traffic, server: &mut EchoServer) -> Result<Vec<String>> {
        let mut lines = vec![self.even_shares()?];
        lines.push(bold("A server that did not answer, and was still listed"));
        lines.extend(self.silence(traffic, server)?);
        lines.push(bold("After the rename of a manifest"));
        lines.push(self.add_endpoint()?);
        let weighed = self.weigh_endpoint()?;
        let removed = self.remove_endpoint()?;
        self.hold(1000)?;
        lines.extend([self.last_connection(removed).0, weighed]);
        let again = self.add_again()?;
        lines.push(figure(ms(again), "first connection to an endpoint that came back"));
        Ok(lines)
    }

    /// Adds the fourth endpoint of `web`.
    fn add_endpoint(&mut self) -> Result<String> {
        let (address, node) = self.web(ADDED);
        self.say(format!("web: scaling from 3 to 4 endpoints: {address} joins web.yaml"));
        let took = self.add(ADDED, &address, node)?;
        self.say(format!("web: {} from the rename of the file to its first connection", ms(took)));
        self.hold(1000)?;
        self.board.set_standing(WEB, Some(ADDED), Standing::Present);
        self.display.table(Some(WEB));
        Ok(figure(ms(took), "first connection to an added endpoint"))
    }

    /// Gives that endpoint more weight for a while.
    fn weigh_endpoint(&mut self) -> Result<String> {
        let (address, _) = self.web(ADDED);
        self.say(format!(
            "web: {address} gets the weight 7, by an annotation of the EndpointSlice"
        ));
        self.manifests.change("web.yaml", |text| manifests::with_weight(text, &address, WEIGHT))?;
        // Connections that have begun come first.
        self.hold(200)?;
        let before = self.counts();
        self.hold(1200)?;
        let shares = shares(&before, &self.counts());
        let all = self.counts().iter().sum::<u64>() - before.iter().sum::<u64>();
        let share = format!("{:.1} %", shares[ADDED]);
        let all = thousands(all);
        self.say(format!("web: {share} of {all} connections, of {WEIGHT} in 10 that it weighs"));
        self.manifests.change("web.yaml", manifests::without_weights)?;
        self.hold(300)?;
        self.display.table(Some(WEB));
        Ok(figure(share, "of connections to an endpoint of 4 with 7 tenths of the weight"))
    }

    /// Removes the first endpoint of `web`. Returns when, and how many connections `web` had had.
    fn remove_endpoint(&mut self) -> Result<(Instant, u64)> {
        let (address, _) = self.web(REMOVED);
        self.say(format!("web: endpoint {address} goes away"));
        let reached = self.board.state().tallies[WEB].reached();
        let without = |text: &str| manifests::without_endpoint(text, &address);
        let removed = (self.manifests.change("web.yaml", without)?, reached);
        self.board.set_standing(WEB, Some(REMOVED), Standing::Removed);
        self.hold(400)?;
        let said = match self.last_connection(removed) {
            (_, Some(last), since) => format!(
                "web: {} from the rename to its last connection; none of {} since",
                ms(last),
                thousands(since)
            ),
            _ => format!("web: no connection reaches {address} after the rename"),
        };
        self.say(said);
        self.hold(700)?;
        self.display.table(Some(WEB));
        Ok(removed)
    }

    /// The last connection after the removal of an endpoint that reached it, and the number of
    /// others since.
    fn last_connection(
        &self,
        (removed, reached): (Instant, u64),
    ) -> (String, Option<Duration>, u64) {
        let state = self.board.state();
        let web = &state.tallies[WEB];
        let gone = &web.endpoints[REMOVED];
        let last = gone.last.filter(|last| *last > removed).map(|last| last - removed);
        let since = web.reached() - gone.reached_by_then.max(reached);
        let text = thousands(since);
        let text = format!("last connection to a removed one; {text} since, none to it");
        (figure(last.map_or("none".to_owned(), ms), text), last, since)
    }

    /// Adds the removed endpoint again, and returns the time until its first connection.
    fn add_again(&mut self) -> Result<Duration> {
        let (address, node) = self.web(REMOVED);
        self.display.restart_table();
        let took = self.add(REMOVED, &address, node)?;
        self.say(format!("web: {address} comes back: first connection after {}", ms(took)));
        self.hold(800)?;
        self.display.table(None);
        Ok(took)
    }

    fn add(&mut self, endpoint: usize, address: &str, node: u8) -> Result<Duration> {
        self.board.set_standing(WEB, Some(endpoint), Standing::Added);
        let with = |text: &str| manifests::with_endpoint(text, address, node);
        let changed = self.manifests.change("web.yaml", with)?;
        let first = |state: &State| state.tallies[WEB].endpoints[endpoint].first;
        let first = self.board.wait(SOON, "a connection to the new endpoint", first)?;
        Ok(first.saturating_duration_since(changed))
    }

    /// Takes all endpoints of `dns` away, and puts them back.
    fn remove_all_endpoints(&mut self) -> Result<String> {
        self.say("dns: all endpoints go away");
        self.board.set_standing(DNS, None, Standing::Removed);
        self.board.state().tallies[DNS].refusals_until =
            Some(Instant::now() + Duration::from_secs(3600));
        let without = |text: &str| manifests::without_endpoint(text, "");
        let changed = self.manifests.change("dns.yaml", without)?;
        let refused = |state: &State| state.tallies[DNS].first_refused;
        let refused = self.board.wait(SOON, "a refusal", refused)? - changed;
        self.say(format!("dns: {} from the rename to the first connection refused", ms(refused)));
        self.hold(900)?;
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
        self.hold(400)?;
        let what = format!("first refusal, without endpoints; first answer, with them: {back}");
        Ok(figure(ms(refused), what))
    }

    /// Kills the proxy under load, and starts it again.
    fn kill(&mut self, node: &NetNs, proxy: &mut Proxy) -> Result<[String; 3]> {
        let before = self.board.state().totals();
        let (_, rules) = count_rules(node)?;
        let pid = proxy.pid().unwrap_or_default();
        let killed = Instant::now();
        proxy.kill();
        self.board.state().proxy = Some(0);
        self.say(format!("switchyard (pid {pid}) is killed under load, with SIGKILL"));
        self.hold(500)?;
        let started = Instant::now();
        proxy.start_again()?;
        proxy.wait_ready(super::READY)?;
        let (outage, ready) = (killed.elapsed(), started.elapsed());
        let pid = proxy.pid().unwrap_or_default();
        self.board.state().proxy = Some(pid);
        // Connections that have begun count, too.
        self.hold(150)?;
        let after = self.board.state().totals();
        let (reached, lost) = (thousands(after.0 - before.0), after.1 - before.1);
        self.say(format!("without it: {reached} connections, {lost} lost"));
        let metrics = proxy.metrics()?;
        let sum = |name| http::metric_values(&metrics, name).iter().sum::<f64>() as u64;
        let messages = sum("switchyard_transaction_messages_sum");
        let bytes = thousands(sum("switchyard_transaction_bytes_sum"));
        let sent = match (messages, rules.saturating_sub(count_rules(node)?.1)) {
            (0, _) => "nothing differed".to_owned(),
            (_, 0) => format!("{bytes} bytes"),
            // Rules of chains that no Service uses any more go at a restart.
            (_, removed) => format!("{bytes} bytes, {removed} unused rules removed"),
        };
        self.say(format!("a new one (pid {pid}) is ready in {}", ms(ready)));
        self.say(format!("its messages to the kernel: {messages} ({sent})"));
        self.hold(500)?;
        Ok([
            figure(ms(outage), "until a new process was ready"),
            figure(reached, format!("connections meanwhile; lost: {}", verdict(lost))),
            figure(thousands(messages), format!("messages to the kernel: {sent}")),
        ])
    }

    /// Flushes the proxy's rules, as another program might, and lets the proxy repair them.
    fn flush(&mut self, node: &NetNs) -> Result<String> {
        let rules = count_rules(node)?;
        let began = Instant::now();
        let ends = began + Duration::from_secs(SOON);
        self.board.state().outage = Some(Outage { began, ends, lost: 0, last: began });
        self.say("somebody runs: nft flush chain ip kube-proxy services");
        node.nft("flush chain ip kube-proxy services\n")?;
        let mut repaired = None;
        while repaired.is_none() && began.elapsed() < Duration::from_secs(SOON) {
            self.hold(20)?;
            repaired =
                Some(Instant::now()).filter(|_| count_rules(node).is_ok_and(|now| now == rules));
        }
        let took = repaired.ok_or("the flushed table was not repaired")? - began;
        // Connections that have begun count, too.
        self.hold(200)?;
        let outage = self.board.state().outage.take();
        let (lost, last) = outage.map_or((0, began), |outage| (outage.lost, outage.last));
        let (took, last) = (ms(took), ms(last - began));
        self.say(format!(
            "its {} rules are back: {lost} connections lost, the last {last} later",
            rules.1
        ));
        self.hold(500)?;
        Ok(figure(
            took,
            format!("until all were back after a flush; {lost} lost, the last at {last}"),
        ))
    }

    /// Shows that connections are spread evenly.
    fn even_shares(&mut self) -> Result<String> {
        let before = self.counts();
        self.hold(2500)?;
        let mut shares = shares(&before, &self.counts())[..ADDED].to_vec();
        shares.sort_by(f64::total_cmp);
        let (least, most) = (shares[0], shares[ADDED - 1]);
        self.say(format!("web: each endpoint has its third: {least:.1} to {most:.1} %"));
        self.display.table(None);
        self.hold(1000)?;
        let what = format!("to {most:.1} % of connections to each of 3 endpoints");
        Ok(figure(format!("{least:.1} %"), what))
    }

    /// Lets a server answer nothing for a while.
    fn silence(&mut self, traffic: &Traffic, server: &mut EchoServer) -> Result<[String; 3]> {
        let (address, _) = self.web(SILENT);
        let before = self.board.state().tallies[WEB].clone();
        self.say(format!("web: {address} stops answering; web.yaml still lists it"));
        {
            // What a server has accepted and not answered is lost with the server, whoever forwards
            // it. So the server stops between two connections.
            let _pause = traffic.pause();
            server.silence()?;
            self.board.set_standing(WEB, Some(SILENT), Standing::Silent);
        }
        self.display.restart_table();
        self.hold(3000)?;
        let now = self.board.state().tallies[WEB].clone();
        let (reached, failed) = (now.reached() - before.reached(), now.failed() - before.failed());
        let (reached, waited) = (thousands(reached), now.slow - before.slow);
        self.say(format!(
            "web: {reached} connections meanwhile, {failed} failed; {waited} waited for it, then took the next"
        ));
        self.say("web: the others did not wait: after two failures it is left out");
        self.display.table(Some(WEB));
        self.hold(800)?;

        let answering = Instant::now();
        server.answer_again()?;
        self.board.set_standing(WEB, Some(SILENT), Standing::Added);
        self.say(format!("web: {address} answers again"));
        let first = |state: &State| state.tallies[WEB].endpoints[SILENT].first;
        // It is left out for some seconds, longer each time that it does not answer.
        let back =
            self.board.wait(20, "a connection to the endpoint that is back", first)? - answering;
        let back = format!("{:.1} s", back.as_secs_f64());
        self.say(format!("web: {back} until the next trial, which succeeds: it is back"));
        self.display.restart_table();
        self.hold(1200)?;
        self.board.set_standing(WEB, Some(SILENT), Standing::Present);
        self.display.table(Some(WEB));
        Ok([
            figure(reached, format!("connections meanwhile; failed: {}", verdict(failed))),
            figure(waited.to_string(), "of them waited for it, and took the next endpoint"),
            figure(back, "first connection to it, once it answered again"),
        ])
    }

    /// The address and node of an endpoint of `web`.
    fn web(&self, endpoint: usize) -> (String, u8) {
        let endpoint = &self.board.state().tallies[WEB].endpoints[endpoint];
        (endpoint.address.to_string(), endpoint.node)
    }

    /// The connections to each endpoint of `web`.
    fn counts(&self) -> Vec<u64> {
        self.board.state().tallies[WEB].endpoints.iter().map(|endpoint| endpoint.count).collect()
    }

    pub fn say(&mut self, text: impl Into<String>) {
        self.display.say(text);
    }

    /// Lets traffic go on for some milliseconds.
    pub fn hold(&self, milliseconds: u64) -> Result<()> {
        self.board.sleep(Duration::from_millis(milliseconds))
    }
}

/// The shares of the connections between two counts, in percent.
fn shares(before: &[u64], after: &[u64]) -> Vec<f64> {
    let more: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    let sum = more.iter().sum::<u64>().max(1) as f64;
    more.into_iter().map(|count| 100.0 * count as f64 / sum).collect()
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
