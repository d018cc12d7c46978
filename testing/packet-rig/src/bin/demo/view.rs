//! The pictures of the board: lines of text with ANSI escapes, the same for a terminal and for a
//! pipe.

use std::time::Duration;

use super::{
    board::{Endpoint, Standing, State, Tally},
    cast::{Role, Show},
    screen::plain,
    traffic::HELD,
};

/// The width of the picture, on a wider terminal too, and of a whole bar.
const WIDTH: usize = 79;
const BAR: usize = 36;
/// Connections whose latency is shown.
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

/// The number of failures, in green if there are none.
pub fn verdict(failures: u64) -> String {
    styled(if failures == 0 { GOOD } else { BAD }, thousands(failures))
}

/// The line with more text that ends in this column, with at least one blank before it.
fn right(line: &str, text: &str, column: usize) -> String {
    let used = plain(line).chars().count() + plain(text).chars().count();
    format!("{line}{}{text}", " ".repeat(column.saturating_sub(used).max(1)))
}

/// A number with its thousands set apart.
pub fn thousands(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", thousands(number / 1000), number % 1000),
    }
}

/// A duration in milliseconds, for people.
pub fn ms(duration: Duration) -> String {
    let milliseconds = duration.as_secs_f64() * 1000.0;
    match milliseconds {
        100.0.. => format!("{milliseconds:.0} ms"),
        _ => format!("{milliseconds:.1} ms"),
    }
}

/// A figure of the summary, and its meaning.
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

/// Each endpoint's share of the connections of the last moments, computed from counts: the rate at
/// which the past is forgotten and at which bars follow, per frame, and of each Service counts,
/// rates and shares.
pub struct Motion {
    forget: f64,
    follow: f64,
    services: Vec<Vec<(u64, f64, f64)>>,
}

impl Motion {
    /// For frames that follow each other, on a screen.
    pub fn smooth() -> Self {
        Self { forget: 0.15, follow: 0.35, services: Vec::new() }
    }

    /// For tables that each show the connections since the last table.
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
    lines.extend(services(state, motion, true).into_iter().flatten());
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

/// A block for each Service. With `keep_rows`, endpoints that are not there yet have a row, too.
pub fn services(state: &State, motion: &Motion, keep_rows: bool) -> Vec<Vec<String>> {
    let blocks = state.show.roles().iter().zip(&state.tallies).enumerate();
    let block = blocks.map(|(index, (role, tally))| {
        let mut lines = vec![header(role, tally)];
        for (number, endpoint) in tally.endpoints.iter().enumerate() {
            if keep_rows || endpoint.standing != Standing::Absent {
                let is_dual = role.name == "api" && state.show == Show::Cluster;
                lines.push(row(endpoint, motion.share(index, number), is_dual));
            }
        }
        lines
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
    fn numbers_and_bars_have_their_length() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_020_003, "1,020,003")] {
            assert_eq!(thousands(number), text);
        }
        for share in [-1.0, 0.001, 0.499, 0.999, 7.0, f64::NAN, f64::INFINITY] {
            let (bar, track) = bar(share);
            assert_eq!(bar.chars().count() + track.chars().count(), BAR);
        }
    }

    #[test]
    fn bars_move_to_where_traffic_goes_and_tables_are_exact() {
        let mut state = Board::new(Show::Cluster).state().clone();
        let (mut smooth, mut exact) = (Motion::smooth(), Motion::exact());
        for frame in 0..40 {
            state.tallies[0].endpoints[0].count += 5;
            state.tallies[0].endpoints[1].count += 5;
            smooth.advance(&state);
            assert!(frame > 0 || smooth.share(0, 0) < 0.25, "a bar grows into its place");
        }
        assert!((smooth.share(0, 0) - 0.5).abs() < 0.01);
        exact.advance(&state);
        state.tallies[0].endpoints[2].count += 30;
        state.tallies[0].refused += 10;
        exact.advance(&state);
        assert_eq!((exact.share(0, 0), exact.share(0, 2)), (0.0, 0.75));
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
            let lines: Vec<String> = lines.iter().map(|line| plain(line)).collect();
            assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
            assert_eq!((lines.len(), lines[23].as_str()), (24, " 8.00 s message 8"));
            assert!(lines[0].contains("0 failed"), "{}", lines[0]);
        }
    }
}
