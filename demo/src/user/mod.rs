//! The act that any user can run: userspace mode, with servers and clients at loopback addresses.

mod cast;
mod held;
mod proxy;
mod rewrite;
mod script;
mod servers;
mod summary;
mod table;

use std::{net::AddrParseError, path::Path, sync::Arc, time::Instant};

use packet_rig::Target;

pub use self::cast::LOOPBACK;
use self::{held::Held, proxy::Proxy, script::User, servers::Servers};
use crate::{
    board::{Board, ProxyStatus, Standing, State},
    cast::{Frontend, WEB},
    display::Display,
    error::{DemoError, Result},
    manifests::Manifests,
    stage::{ADDED, Stage},
    stop::Stop,
    traffic::{Origin, Traffic},
    view::{Line, ms},
};

/// Connections that stay open all the time.
const HELD: usize = 4;

/// Starts servers and the proxy, plays the script, and ends them. Returns the summary, and the number of
/// connections that broke.
pub fn perform(
    binary: &Path,
    board: &Arc<Board>,
    display: &mut Display,
    stop: &Stop,
) -> Result<(Vec<Line>, u64)> {
    board.state().tallies[WEB].endpoints[ADDED].standing = Standing::Absent;
    display
        .say(format!("starting {} servers on this machine, at 127.77.0.0/16", LOOPBACK.pods.len()));
    let mut servers = Servers::start()?;
    let ports = servers.ports();
    let manifests = Manifests::rewritten(|text| ports.rewrite(text))?;
    stop.check()?;
    let started = Instant::now();
    let mut proxy = Proxy::start(binary, &manifests)?;
    let targets = proxy.wait_ready(ports.has_v6, stop)?;
    let ready = started.elapsed();
    label(&mut board.state(), &targets);
    let held = Held::open(targets[WEB][0].address, HELD)?;
    let traffic = Traffic::start(&clients()?, &targets, board);
    let mut stage = Stage { manifests: &manifests, board, display, stop };
    board.state().proxy = ProxyStatus::Running(proxy.pid());
    stage.say(format!(
        "switchyard (pid {}) listens, without privileges and without rules: ready in {}",
        proxy.pid(),
        ms(ready)
    ));
    show_table(&mut stage, &targets)?;
    let mut user = User { stage, servers: &mut servers, traffic: &traffic };
    let mut findings = user.play(&proxy)?;
    traffic.finish()?;
    let (answers, broken) = held.finish();
    findings.held = (HELD as u64, broken);
    findings.held_answers = answers;
    let state = board.state().clone();
    Ok((summary::summary(&state, &findings), broken))
}

/// Shows with each Service the ports at which it can be reached.
fn label(state: &mut State, targets: &[Vec<Target>]) {
    for (index, targets) in targets.iter().enumerate() {
        let frontends = state.cast.roles[index].frontends.iter().zip(targets);
        let label = |(frontend, target): (&Frontend, &Target)| {
            format!("{} = :{}", frontend.label, target.address.port())
        };
        state.tallies[index].labels = frontends.map(label).collect();
    }
}

/// Shows the table, a message for each Service.
fn show_table(stage: &mut Stage<'_>, targets: &[Vec<Target>]) -> Result<()> {
    for (role, targets) in LOOPBACK.roles.iter().zip(targets) {
        let frontends = role.frontends.iter().zip(targets);
        let one = |(frontend, target): (&Frontend, &Target)| {
            format!("{} is at {}", frontend.label, target.address)
        };
        stage.say(format!(
            "{:<5} {}",
            role.name,
            frontends.map(one).collect::<Vec<_>>().join(", ")
        ));
        stage.hold(150)?;
    }
    Ok(())
}

/// The clients of each Service.
fn clients() -> Result<Vec<Vec<(&'static str, Origin)>>> {
    let at = |place: &&'static str| Ok((*place, Origin::Address(place.parse()?)));
    let all = LOOPBACK.roles.iter().map(|role| role.places.iter().map(at).collect());
    all.collect::<Result<_, AddrParseError>>()
        .map_err(std::io::Error::other)
        .map_err(DemoError::io("read the cast's addresses"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{self, Glyphs, Motion};

    #[test]
    fn services_with_their_ports_fit_a_small_terminal() {
        let mut state = Board::new(&LOOPBACK).state().clone();
        let targets = LOOPBACK.roles.iter().map(|role| {
            let address = ([127, 0, 0, 1], 29_999).into();
            role.frontends.iter().map(|one| Target { protocol: one.protocol, address }).collect()
        });
        label(&mut state, &targets.collect::<Vec<_>>());
        for tally in &mut state.tallies {
            tally.frontends.iter_mut().for_each(|count| *count = 9_876);
            if !tally.endpoints.is_empty() {
                tally.latencies = vec![9_876; 10].into();
            }
            tally.homes.insert("a", [0].into());
        }
        state.tallies[5].refused = 987;
        let blocks = view::services(&state, &Motion::exact(), Glyphs::UNICODE, true);
        assert_eq!(blocks[0][0].text().find("= :29999 9,876"), Some(26), "{}", blocks[0][0].text());
        for line in blocks.iter().flatten() {
            assert!(line.width() <= 80, "{}", line.text());
        }
        let rows = blocks.iter().map(Vec::len).sum::<usize>() + 2;
        assert!(rows <= 22, "{rows} rows, and two for messages");
    }
}
