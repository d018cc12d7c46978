//! The changes of the act, in order, and the measurements.

use std::time::{Duration, Instant};

use super::{
    proxy::{Proxy, Usage},
    servers::Servers,
};
use crate::{
    board::{Standing, State},
    cast::WEB,
    error::{DemoError, Result},
    stage::{ADDED, Changes, Stage},
    traffic::Traffic,
    view::{seconds, thousands},
};

/// The endpoint of `web` that does not answer for a while.
const SILENT: usize = 1;
/// The longest time until an endpoint that answers again gets connections. It is left out for some seconds,
/// longer each time that it does not answer.
const BACK: Duration = Duration::from_secs(20);

/// All measurements of the script.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The least and the greatest share of `web`'s connections that an endpoint had, in percent.
    pub shares: (f64, f64),
    /// The connections to `web` while one of its endpoints did not answer.
    pub during_silence: u64,
    /// The number of them that waited for that endpoint, and then reached another.
    pub waited: u64,
    /// The number of them that failed.
    pub failed_in_silence: u64,
    /// From the moment at which the endpoint answered again to its first connection.
    pub back: Duration,
    /// The changes to `web`.
    pub changes: Changes,
    /// From the rename to the first connection that reached an endpoint again.
    pub added_again: Duration,
    /// What the proxy used of the machine at the end.
    pub usage: Option<Usage>,
    /// The number of connections that were open all the time, and how many of them broke.
    pub held: (u64, u64),
    /// Answers over these connections.
    pub held_answers: u64,
}

/// The stage, and what is on it.
pub struct User<'a> {
    /// What every act works with.
    pub stage: Stage<'a>,
    /// The servers.
    pub servers: &'a mut Servers,
    /// The clients.
    pub traffic: &'a Traffic,
}

impl User<'_> {
    /// Plays the whole script, with a proxy that is ready.
    pub fn play(&mut self, proxy: &Proxy) -> Result<Findings> {
        let mut findings = Findings::default();
        self.lb_algorithm(&mut findings)?;
        self.silence(&mut findings)?;
        let stage = &mut self.stage;
        stage.add_endpoint(&mut findings.changes)?;
        stage.weigh_endpoint(&mut findings.changes)?;
        let removal = stage.remove_endpoint(&mut findings.changes)?;
        stage.hold(1000)?;
        stage.check_removed(removal, &mut findings.changes);
        findings.added_again = stage.add_endpoint_again()?;
        findings.usage = proxy.usage();
        Ok(findings)
    }

    /// Shows that connections are spread evenly.
    fn lb_algorithm(&mut self, findings: &mut Findings) -> Result<()> {
        let stage = &mut self.stage;
        let before = counts(&stage.board.state());
        stage.hold(2500)?;
        let after = counts(&stage.board.state());
        let more: Vec<u64> =
            after.iter().zip(before).map(|(after, before)| after - before).collect();
        findings.shares = extremes(&more[..ADDED]);
        let (least, greatest) = findings.shares;
        stage.say(format!("web: each endpoint has its third: {least:.1} to {greatest:.1} %"));
        stage.display.table();
        stage.hold(1000)
    }

    /// Lets a server answer nothing for a while.
    fn silence(&mut self, findings: &mut Findings) -> Result<()> {
        let stage = &mut self.stage;
        let (address, _) = stage.web(SILENT);
        let pod = stage.board.state().tallies[WEB].endpoints[SILENT].pod.name;
        let before = stage.board.state().tallies[WEB].clone();
        stage.say(format!("web: {address} stops answering; web.yaml still lists it"));
        {
            // What a server has accepted and not answered is lost with the server, whoever forwards it. So
            // the server stops between two connections.
            let _pause = self.traffic.pause();
            self.servers.of(pod)?.silence().map_err(DemoError::io("silence a server"))?;
            stage.board.set_standing(WEB, SILENT, Standing::Silent);
        }
        stage.display.restart_table();
        stage.hold(3000)?;
        let now = stage.board.state().tallies[WEB].clone();
        findings.during_silence = now.reached() - before.reached();
        findings.failed_in_silence = now.failed() - before.failed();
        findings.waited = now.slow - before.slow;
        stage.say(format!(
            "web: {} connections meanwhile, {} failed; {} waited for it, then took the next",
            thousands(findings.during_silence),
            findings.failed_in_silence,
            findings.waited
        ));
        stage.say("web: the others did not wait: after two failures it is left out");
        stage.display.table_of(WEB);
        stage.hold(800)?;

        let answering = Instant::now();
        self.servers.of(pod)?.answer_again().map_err(DemoError::io("end a server's silence"))?;
        stage.board.set_standing(WEB, SILENT, Standing::Added);
        stage.say(format!("web: {address} answers again"));
        let first = |state: &State| state.tallies[WEB].endpoints[SILENT].first;
        let first =
            stage.wait_for(BACK, "a connection to the endpoint that answers again", first)?;
        findings.back = first.saturating_duration_since(answering);
        stage.say(format!(
            "web: {} until the next trial, which succeeds: it is back",
            seconds(findings.back)
        ));
        stage.display.restart_table();
        stage.hold(1200)?;
        stage.board.set_standing(WEB, SILENT, Standing::Present);
        stage.display.table_of(WEB);
        Ok(())
    }
}

/// The connections to each endpoint of `web`.
fn counts(state: &State) -> Vec<u64> {
    state.tallies[WEB].endpoints.iter().map(|endpoint| endpoint.count).collect()
}

/// The least and the greatest share, in percent.
fn extremes(counts: &[u64]) -> (f64, f64) {
    let sum = counts.iter().sum::<u64>().max(1) as f64;
    let shares = counts.iter().map(|count| 100.0 * *count as f64 / sum);
    shares.fold((100.0, 0.0), |(least, greatest), share| (least.min(share), greatest.max(share)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percents_of_their_sum() {
        assert_eq!(extremes(&[10, 20, 10]), (25.0, 50.0));
        assert_eq!(extremes(&[0, 0]), (0.0, 0.0), "no connections, no share");
    }
}
