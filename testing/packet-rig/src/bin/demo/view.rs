//! The pictures of the board: lines of text with ANSI escapes.

use std::time::Duration;

use anstream::adapter::strip_str;

use super::{
    board::{Endpoint, Standing, State, Tally},
    cast::{Role, Show},
    traffic::HELD,
};

/// The width of the picture, on a wider terminal too, and of a whole bar.
const WIDTH: usize = 79;
const BAR: usize = 36;
const WINDOW: usize = 500;

const BOLD: &str = "1";
const DIM: &str = "90";
const NEAR: &str = "36";
const FAR: &str = "34";
const GOOD: &str = "32";
const BAD: &str = "1;31";
const TITLE: &str = "1;7";

fn styled(style: &str, text: impl AsRef<str>) -> String {
    format!("\x1b[{style}m{}\x1b[0m", text.as_ref())
}

pub fn bold(text: impl AsRef<str>) -> String {
    styled(BOLD, text)
}

pub fn verdict(failures: u64) -> String {
    styled(if failures == 0 { GOOD } else { BAD }, thousands(failures))
}

/// The line with more text that ends in this column, with at least one blank before it.
fn right(line: &str, text: &str, column: usize) -> String {
    let columns = |text| strip_str(text).to_string().chars().count();
    let used = columns(line) + columns(text);
    format!("{line}{}{text}", " ".repeat(column.saturating_sub(used).max(1)))
}

pub fn thousands(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", thousands(number / 1000), number % 1000),
    }
}

pub fn ms(duration: Duration) -> String {
    let milliseconds = duration.as_secs_f64() * 1000.0;
    match milliseconds {
        100.0.. => format!("{milliseconds:.0} ms"),
        _ => format!("{milliseconds:.1} ms"),
    }
}

pub fn figure(figure: impl AsRef<str>, what: impl AsRef<str>) -> String {
    right("", &bold(figure), 13) + "  " + what.as_ref()
}

/// A bar of this share of [`BAR`] columns, in eighths of a column, and what fills them.
fn bar(share: f64) -> (String, String) {
    const EIGHTHS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
    // The share is clamped, so the product is a small positive number. NaN becomes 0.
    let length = (share.clamp(0.0, 1.0) * (BAR * 8) as f64).round() as usize;
    let mut bar = "█".repeat(length / 8);
    bar.extend((length % 8).checked_sub(1).map(|part| EIGHTHS[part]));
    (bar, "·".repeat(BAR - length.div_ceil(8)))
}

/// Each endpoint's share of the last connections: the rates at which the past is forgotten and at
/// which bars follow, per frame, and of each Service counts, rates and shares.
pub struct Motion {
    forget: f64,
    follow: f64,
    services: Vec<Vec<(u64, f64, f64)>>,
}

impl Motion {
    pub fn smooth() -> Self {
        Self { forget: 0.15, follow: 0.35, services: Vec::new() }
    }

    pub fn exact() -> Self {
        Self { forget: 1.0, follow: 1.0, services: Vec::new() }
    }

    /// Updates the shares from a new state. Refusals are a share, too.
    pub fn advance(&mut self, state: &State) {
        self.services.resize_with(state.tallies.len(), Vec::new);
        for (service, tally) in self.services.iter_mut().zip(&state.tallies) {
            let counts = tally.endpoints.iter().map(|endpoint| endpoint.count);
            service.resize(tally.endpoints.len() + 1, (0, 0.0, 0.0));
            for ((before, rate, _), now) in service.iter_mut().zip(counts.chain([tally.refused])) {
                *rate += (now.saturating_sub(*before) as f64 - *rate) * self.forget;
                *before = now;
            }
            let sum: f64 = service.iter().map(|(_, rate, _)| rate).sum();
            for (_, rate, share) in service {
                let target = if sum > 1e-3 { *rate / sum } else { 0.0 };
                *share += (target - *share) * self.follow;
            }
        }
    }

    fn share(&self, service: usize, endpoint: usize) -> f64 {
        self.services.get(service).and_then(|service| service.get(endpoint)).map_or(0.0, |it| it.2)
    }
}

/// The whole picture: a title, a block for each Service, and the last messages; exactly `rows`
/// lines.
pub fn frame(state: &State, motion: &Motion, elapsed: Duration, rows: usize) -> Vec<String> {
    let (left, end) = ("── Service, clients → frontends ", " now ── p50/p99 ms");
    let between = WIDTH.saturating_sub(left.chars().count() + end.chars().count());
    let heading = styled(DIM, format!("{left}{}{end}", "─".repeat(between)));
    let mut lines = vec![title(state, elapsed), heading];
    lines.extend(services(state, motion).into_iter().flatten());
    let first = state.said.len().saturating_sub(rows.saturating_sub(lines.len()));
    for (index, (when, text)) in state.said.iter().enumerate().skip(first) {
        let time = styled(DIM, format!("{:5.2} s ", when.as_secs_f64()));
        let is_last = index + 1 == state.said.len();
        lines.push(time + &if is_last { bold(text) } else { text.clone() });
    }
    lines.resize(rows, String::new());
    lines
}

fn title(state: &State, elapsed: Duration) -> String {
    let mode = match state.show {
        Show::Cluster => "nftables · node-1",
        Show::Loopback => "userspace · any user",
    };
    let (reached, failed) = state.totals();
    let process = match state.proxy {
        None => styled(DIM, format!(" starting {mode}")),
        Some(0) => styled(BAD, format!(" {mode} · killed")),
        Some(pid) => styled(DIM, format!(" {mode} · pid {pid}")),
    };
    let line = styled(TITLE, " Switchyard ") + &process;
    let counts = bold(format!("{} connections", thousands(reached)));
    let clock = styled(DIM, format!("{:.1} s", elapsed.as_secs_f64()));
    right(&line, &format!("{counts} {} failed {clock}", verdict(failed)), WIDTH)
}

/// A block for each Service. The row of an endpoint that is not there yet is empty.
pub fn services(state: &State, motion: &Motion) -> Vec<Vec<String>> {
    let blocks = state.show.roles().iter().zip(&state.tallies).enumerate();
    let block = blocks.map(|(index, (role, tally))| {
        let is_dual = role.name == "api" && state.show == Show::Cluster;
        let endpoints = tally.endpoints.iter().enumerate();
        let rows = endpoints.map(|(i, one)| row(one, motion.share(index, i), is_dual));
        [header(role, tally)].into_iter().chain(rows).collect()
    });
    block.collect()
}

fn header(role: &Role, tally: &Tally) -> String {
    let frontends = tally.frontends.iter().map(|(label, count)| match tally.endpoints.is_empty() {
        true => label.clone(),
        false => format!("{label} {}", bold(thousands(*count))),
    });
    let mut line = bold(format!("{:<6}", role.name)) + role.clients;
    line += &styled(DIM, " → ");
    line += &frontends.collect::<Vec<_>>().join(&styled(DIM, ", "));
    let dot = styled(DIM, " · ");
    if role.name == "cart" && tally.each_client_kept_its_endpoint() {
        line += &(dot.clone() + &styled(GOOD, "each keeps its endpoint"));
    }
    if tally.endpoints.is_empty() {
        line += &(dot.clone() + &styled(DIM, "no endpoints"));
    }
    if tally.refused > 0 {
        line += &(dot + &styled(BAD, format!("connection refused {}", thousands(tally.refused))));
    }
    match tally.latency(WINDOW) {
        Some((p50, p99)) => right(&line, &styled(DIM, format!("{p50:.2}/{p99:.2}")), WIDTH),
        None => line,
    }
}

fn row(endpoint: &Endpoint, share: f64, is_dual: bool) -> String {
    let style = match (endpoint.standing, endpoint.node) {
        (Standing::Absent, _) => return String::new(),
        (Standing::Removed, _) => DIM,
        (Standing::Silent, _) => BAD,
        (Standing::Added, _) => GOOD,
        (Standing::Present, 1) => NEAR,
        (Standing::Present, _) => FAR,
    };
    let address = endpoint.address.to_string() + if is_dual { " +v6" } else { "" };
    let (bar, track) = bar(share);
    let now = match endpoint.standing {
        Standing::Removed => " gone".to_owned(),
        Standing::Silent if share < 0.005 => "silent".to_owned(),
        _ => format!("{:3.0} %", share * 100.0),
    };
    let label = |text: String| if style == DIM { styled(DIM, text) } else { text };
    label(format!("  {address:<15} "))
        + &styled(style, format!("node-{} {bar}", endpoint.node))
        + &styled(DIM, track)
        + &label(format!(" {:>9} ", thousands(endpoint.count)))
        + &styled(style, now)
}

/// The summary's first lines: each Service, the failures, and the connections that stayed open.
pub fn totals(state: &State) -> Vec<String> {
    let mut lines = vec![bold(format!(
        "{:<10}{:>12}{:>9}{:>9}{:>9}{:>9}",
        "Service", "connections", "refused", "failed", "p50 ms", "p99 ms"
    ))];
    let (mut failures, roles) = (Vec::new(), state.show.roles());
    for (role, tally) in roles.iter().zip(&state.tallies) {
        let (reached, refused) = (thousands(tally.reached()), thousands(tally.refused));
        let line = format!("  {:<8}{reached:>12}{refused:>9}", role.name);
        let line = right(&line, &verdict(tally.failed()), 40);
        let latency = tally.latency(usize::MAX);
        let latency = latency.map(|(p50, p99)| format!("{p50:>9.2}{p99:>9.2}"));
        lines.push(line + &latency.unwrap_or_default());
        let failure = |(what, count)| styled(BAD, format!("  {}: {count} times {what}", role.name));
        failures.extend(tally.failures.iter().map(failure));
    }
    let (answers, broken) = (thousands(state.held.0), verdict(state.held.1));
    lines.append(&mut failures);
    lines.push(format!("  {HELD} connections stayed open: {answers} answers, {broken} broken"));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Board;

    #[test]
    fn bars_move_to_where_traffic_goes_and_tables_are_exact() {
        let mut state = Board::new(Show::Cluster).state().clone();
        let (mut smooth, mut exact) = (Motion::smooth(), Motion::exact());
        state.tallies[0].endpoints[2].count += 30;
        state.tallies[0].refused += 10;
        smooth.advance(&state);
        exact.advance(&state);
        assert_eq!(exact.share(0, 2), 0.75);
        assert!((0.1..0.5).contains(&smooth.share(0, 2)), "a bar grows into its place");
    }

    #[test]
    fn a_small_terminal_is_enough() {
        for show in [Show::Cluster, Show::Loopback] {
            let mut state = Board::new(show).state().clone();
            for tally in &mut state.tallies {
                tally.endpoints.iter_mut().for_each(|endpoint| endpoint.count = 9_876);
                tally.frontends.iter_mut().for_each(|(_, count)| *count = 9_876);
            }
            state.proxy = Some(99_999);
            state.said = (0..9).map(|n| (Duration::from_secs(n), format!("message {n}"))).collect();
            let lines = frame(&state, &Motion::exact(), Duration::from_secs(9), 24);
            let lines: Vec<_> = lines.iter().map(|line| strip_str(line).to_string()).collect();
            assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
            assert_eq!((lines.len(), lines[23].as_str()), (24, " 8.00 s message 8"));
            assert!(lines[0].contains("0 failed"), "{}", lines[0]);
        }
    }
}
