//! The whole picture: a title, a block for each Service, and the last messages.

use std::time::Duration;

use super::{
    bar::Glyphs,
    line::{Line, Style},
    motion::Motion,
    thousands,
};
use crate::{
    board::{Endpoint, ProxyStatus, Standing, State, Tally},
    cast::{Note, Role},
};

/// The width of the picture, on a wider terminal too.
const WIDTH: usize = 79;
/// The least width of a terminal for the picture.
const BAR: usize = 36;
/// Connections whose latency is shown.
const WINDOW: usize = 500;

/// A frame of exactly `rows` lines.
pub fn frame(
    state: &State,
    motion: &Motion,
    elapsed: Duration,
    glyphs: Glyphs,
    (columns, rows): (usize, usize),
) -> Vec<Line> {
    let mut lines = vec![title(state, elapsed, glyphs), heading(glyphs)];
    lines.extend(services(state, motion, glyphs, true).into_iter().flatten());
    let room = rows.saturating_sub(lines.len());
    let first = state.said.len().saturating_sub(room);
    let last = state.said.len().saturating_sub(1);
    for (index, (when, text)) in state.said.iter().enumerate().skip(first) {
        let style = if index == last { Style::Bold } else { Style::Plain };
        lines.push(
            Line::new()
                .with(Style::Dim, format!("{:5.2} s ", when.as_secs_f64()))
                .with(style, text.as_str()),
        );
    }
    lines.resize_with(rows, Line::new);
    lines.into_iter().map(|line| line.clipped(columns)).collect()
}

fn title(state: &State, elapsed: Duration, glyphs: Glyphs) -> Line {
    let mut line = Line::new().with(Style::Title, " Switchyard ");
    let mode = format!(" {} {} {}", state.cast.mode, glyphs.dot, state.cast.place);
    match state.proxy {
        ProxyStatus::Starting => {
            line.push(Style::Dim, format!(" starting {} {}", glyphs.dot, state.cast.place))
        }
        ProxyStatus::Running(pid) => {
            line.push(Style::Dim, format!("{mode} {} pid {pid}", glyphs.dot));
        }
        ProxyStatus::Killed => {
            line.push(Style::Bad, format!("{mode} {} killed", glyphs.dot));
        }
    }
    let failed = state.failed();
    let (reached, failed_text) =
        (format!("{} connections", thousands(state.reached())), format!("{failed} failed"));
    let clock = format!("{:4.1} s", elapsed.as_secs_f64());
    let tail = reached.len() + failed_text.len() + clock.len() + 4;
    line.push_right(Style::Bold, &reached, WIDTH.saturating_sub(tail - reached.len()));
    line.push(Style::Plain, "  ");
    line.push(if failed == 0 { Style::Good } else { Style::Bad }, failed_text);
    line.push_right(Style::Dim, &clock, WIDTH);
    line
}

fn heading(glyphs: Glyphs) -> Line {
    let rule = |count: usize| std::iter::repeat_n(glyphs.rule, count).collect::<String>();
    let right = format!(" now {} p50/p99 ms", rule(2));
    let mut line = Line::new()
        .with(Style::Dim, format!("{} Service, clients {} frontends ", rule(2), glyphs.arrow));
    let between = WIDTH.saturating_sub(line.width() + right.chars().count());
    line.push(Style::Dim, rule(between) + &right);
    line
}

/// A block for each Service. With `keep_rows`, endpoints that are not there yet have a row, too.
pub fn services(state: &State, motion: &Motion, glyphs: Glyphs, keep_rows: bool) -> Vec<Vec<Line>> {
    let mut blocks = Vec::new();
    for (index, tally) in state.tallies.iter().enumerate() {
        let mut lines = vec![header(&state.cast.roles[index], tally, glyphs)];
        for (number, endpoint) in tally.endpoints.iter().enumerate() {
            if keep_rows || endpoint.standing != Standing::Absent {
                let dual = state.cast.roles[index].note == Note::DualStack;
                lines.push(row(endpoint, motion.share(index, number), dual, glyphs));
            }
        }
        blocks.push(lines);
    }
    blocks
}

fn header(role: &Role, tally: &Tally, glyphs: Glyphs) -> Line {
    let mut line = Line::new()
        .with(Style::Bold, format!("{:<6}", role.name))
        .with(Style::Plain, role.clients)
        .with(Style::Dim, format!(" {} ", glyphs.arrow));
    for (number, (label, count)) in tally.labels.iter().zip(&tally.frontends).enumerate() {
        if number > 0 {
            line.push(Style::Dim, ", ");
        }
        line.push(Style::Plain, label.as_str());
        if !tally.endpoints.is_empty() {
            line.push(Style::Bold, format!(" {}", thousands(*count)));
        }
    }
    let dot = format!(" {} ", glyphs.dot);
    if role.note == Note::Affinity && tally.each_client_kept_its_endpoint() {
        line.push(Style::Dim, dot.as_str());
        line.push(Style::Good, "each keeps its endpoint");
    }
    if role.note == Note::Refused {
        line.push(Style::Dim, format!("{dot}no endpoints"));
    }
    if tally.refused > 0 {
        line.push(Style::Dim, dot);
        line.push(Style::Bad, format!("connection refused {}", thousands(tally.refused)));
    }
    if let Some((p50, p99)) = tally.latency(WINDOW) {
        line.push_right(Style::Dim, &format!("{p50:.2}/{p99:.2}"), WIDTH);
    }
    line
}

fn row(endpoint: &Endpoint, share: f64, is_dual: bool, glyphs: Glyphs) -> Line {
    let Endpoint { pod, standing, count, .. } = endpoint;
    let style = match (standing, pod.node) {
        (Standing::Absent, _) => return Line::new(),
        (Standing::Removed, _) => Style::Dim,
        (Standing::Silent, _) => Style::Bad,
        (Standing::Added, _) => Style::Good,
        (Standing::Present, 1) => Style::Near,
        (Standing::Present, _) => Style::Far,
    };
    let address = pod.address() + if is_dual { " +v6" } else { "" };
    let (bar, track) = glyphs.bar(share, BAR);
    let now = match standing {
        Standing::Removed => " gone".to_owned(),
        Standing::Silent if share < 0.005 => "silent".to_owned(),
        _ => format!("{:3.0} %", share * 100.0),
    };
    let label = if style == Style::Dim { Style::Dim } else { Style::Plain };
    Line::new()
        .with(label, format!("  {address:<15} "))
        .with(style, format!("node-{} ", pod.node))
        .with(style, bar)
        .with(Style::Dim, track)
        .with(label, format!(" {:>9} ", thousands(*count)))
        .with(style, now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        board::Board,
        cast::{DNS, IDLE, WEB},
        cluster::CLUSTER,
    };

    /// A state with large counts, and everything said that can be.
    fn crowded() -> State {
        let mut state = Board::new(&CLUSTER).state().clone();
        for (role, tally) in state.tallies.iter_mut().enumerate() {
            let reached = if role == WEB { 98_765 } else { 9_876 };
            tally.frontends.iter_mut().for_each(|count| *count = reached);
            tally.endpoints.iter_mut().for_each(|endpoint| endpoint.count = reached);
            tally.refused = if [DNS, IDLE].contains(&role) { 9_876 } else { 0 };
            tally.latencies = vec![9_876; 10].into();
            tally.homes.insert("a", [0].into());
        }
        state.proxy = ProxyStatus::Running(4_194_303);
        state.said = (0..9).map(|n| (Duration::from_secs(n), "x".repeat(200))).collect();
        state
    }

    #[test]
    fn a_small_terminal_is_enough() {
        let state = crowded();
        let mut motion = Motion::exact();
        motion.advance(&state);
        for glyphs in [Glyphs::UNICODE, Glyphs::ASCII] {
            let lines = frame(&state, &motion, Duration::from_secs(9), glyphs, (80, 24));
            assert_eq!(lines.len(), 24);
            for line in &lines {
                assert!(line.width() <= 80, "{}", line.text());
            }
            // Only what is said may be too long for its line; the last words are there.
            for line in services(&state, &motion, glyphs, true).iter().flatten() {
                assert!(line.width() <= 80, "{}", line.text());
            }
            assert!(lines[23].text().starts_with(" 8.00 s xxx"));
            assert!(lines[0].text().contains("0 failed"));
        }
        let tiny = frame(&state, &motion, Duration::ZERO, Glyphs::UNICODE, (10, 3));
        assert!(tiny.iter().all(|line| line.width() <= 10));
    }

    #[test]
    fn an_endpoint_shows_its_share_and_how_it_stands() {
        let mut state = Board::new(&CLUSTER).state().clone();
        let web = &mut state.tallies[WEB];
        web.endpoints[0].count = 300;
        web.endpoints[1].count = 100;
        web.endpoints[2].standing = Standing::Removed;
        web.endpoints[3].standing = Standing::Absent;
        let mut motion = Motion::exact();
        motion.advance(&state);
        let lines = services(&state, &motion, Glyphs::ASCII, false);
        let text: Vec<String> = lines.iter().flatten().map(Line::text).collect();
        assert!(text[0].starts_with("web   pod -> cluster IP 10.96.0.10:80 0"), "{}", text[0]);
        let bar = "#".repeat(27);
        assert_eq!(text[1], format!("  10.244.1.12     node-1 {bar:<36}       300  75 %"));
        assert!(text[2].ends_with(" 25 %") && text[2].contains("node-1 #########  "));
        assert!(text[3].ends_with(" gone"));
        assert!(text[4].starts_with("api "), "what is not there has no row: {}", text[4]);
    }

    #[test]
    fn failures_and_refusals_show() {
        let mut state = Board::new(&CLUSTER).state().clone();
        state.tallies[WEB].failures.insert("timed out".to_owned(), 3);
        state.tallies[IDLE].refused = 12;
        let lines = frame(&state, &Motion::exact(), Duration::ZERO, Glyphs::UNICODE, (80, 24));
        let failed = (Style::Bad, "3 failed".to_owned());
        assert!(lines[0].spans().contains(&failed), "{:?}", lines[0]);
        let refused = (Style::Bad, "connection refused 12".to_owned());
        assert!(lines.iter().any(|line| line.spans().contains(&refused)));
    }
}
