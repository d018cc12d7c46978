//! The summary that stays on the screen: the figures, and the next commands to try.

use super::{
    line::{Line, Style},
    thousands,
};
use crate::{
    board::State,
    cast::ROLES,
    findings::{Findings, ms},
};

/// The column in which the figures of the lower part end.
const FIGURES: usize = 13;

/// The summary, at most as high and wide as a small terminal.
pub fn summary(state: &State, findings: &Findings) -> Vec<Line> {
    let mut lines = vec![Line::new().with(
        Style::Bold,
        format!(
            "{:<10}{:>12}{:>9}{:>9}{:>9}{:>9}",
            "Service", "connections", "refused", "failed", "p50 ms", "p99 ms"
        ),
    )];
    lines.extend(services(state));
    lines.extend(failures(state));
    lines.push(held(findings));
    lines.push(Line::new().with(Style::Bold, "After the rename of a manifest"));
    lines.extend(changes(findings));
    lines.push(Line::new().with(Style::Bold, "Killed with SIGKILL, under load"));
    lines.extend(outage(findings));
    lines.push(Line::new().with(Style::Bold, "In the kernel (nft list table ip kube-proxy)"));
    let rules = findings.rules;
    lines.push(figure(&rules.chains.to_string(), &format!("chains, {} rules", rules.rules)));
    lines.push(Line::new().with(Style::Bold, "Look next at"));
    lines.push(hint("target/release/switchyard render --manifests examples", "the rules"));
    lines.push(hint("docs/nftables.md, docs/architecture.md, examples/", "how to read them"));
    lines
}

fn services(state: &State) -> impl Iterator<Item = Line> {
    ROLES.iter().zip(&state.tallies).map(|(role, tally)| {
        let mut line = Line::new()
            .with(Style::Plain, format!("  {:<8}", role.name))
            .with(Style::Plain, format!("{:>12}", thousands(tally.reached())))
            .with(Style::Plain, format!("{:>9}", thousands(tally.refused)))
            .with(verdict(tally.failed()), format!("{:>9}", thousands(tally.failed())));
        if let Some((p50, p99)) = tally.latency(usize::MAX) {
            line.push(Style::Plain, format!("{p50:>9.2}{p99:>9.2}"));
        }
        line
    })
}

/// The failures.
fn failures(state: &State) -> impl Iterator<Item = Line> {
    ROLES.iter().zip(&state.tallies).flat_map(|(role, tally)| {
        tally.failures.iter().map(|(what, count)| {
            Line::new().with(Style::Bad, format!("  {}: {count} times {what}", role.name))
        })
    })
}

fn held(findings: &Findings) -> Line {
    let (held, broken) = findings.held;
    Line::new()
        .with(Style::Plain, format!("  {held} connections stayed open: "))
        .with(Style::Plain, format!("{} answers, ", thousands(findings.held_answers)))
        .with(verdict(broken), format!("{broken} broken"))
}

fn changes(findings: &Findings) -> Vec<Line> {
    let since = format!(
        "last connection to a removed one; {} since, none to it",
        thousands(findings.since_removed)
    );
    let removed = findings.removed.map_or("none".to_owned(), ms);
    let refused = format!(
        "first refusal, without endpoints; first answer, with them: {}",
        ms(findings.restored)
    );
    vec![
        figure(&ms(findings.added), "first connection to an added endpoint"),
        figure(&removed, &since),
        figure(
            &format!("{:.1} %", findings.weighed),
            "of connections to an endpoint of 4 with 7 tenths of the weight",
        ),
        figure(&ms(findings.refused), &refused),
    ]
}

fn outage(findings: &Findings) -> Vec<Line> {
    let lost = findings.failed_in_outage;
    let during = thousands(findings.during_outage);
    let mut connections = figure(&during, "connections meanwhile; lost: ");
    connections.push(verdict(lost), lost.to_string());
    vec![
        figure(&ms(findings.outage), "until a new process was ready"),
        connections,
        figure(
            &thousands(findings.sent.0),
            &format!("messages to the kernel: {}", findings.sent()),
        ),
        figure(&ms(findings.added_again), "first connection to an endpoint that was added then"),
    ]
}

fn figure(figure: &str, what: &str) -> Line {
    let mut line = Line::new();
    line.push_right(Style::Bold, figure, FIGURES);
    line.with(Style::Plain, format!("  {what}"))
}

fn hint(where_to: &str, what: &str) -> Line {
    Line::new().with(Style::Plain, format!("  {where_to:<55} ")).with(Style::Dim, what)
}

fn verdict(failures: u64) -> Style {
    if failures == 0 { Style::Good } else { Style::Bad }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{board::Board, cast::WEB};

    #[test]
    fn the_summary_fits_a_small_terminal() {
        let mut state = Board::new().state().clone();
        for tally in &mut state.tallies {
            tally.refused = 1_234_567;
            tally.latencies = vec![1_234_567; 3].into();
            for endpoint in &mut tally.endpoints {
                endpoint.count = 1_234_567;
            }
        }
        let findings = Findings {
            removed: Some(Duration::from_secs(100)),
            since_removed: 12_345_678,
            sent: (1234, 1_234_567),
            removed_rules: 123,
            ..Findings::default()
        };
        let lines = summary(&state, &findings);
        assert!(lines.len() <= 23, "{} lines and a prompt", lines.len());
        for line in &lines {
            assert!(line.width() <= 80, "{}", line.text());
        }
    }

    #[test]
    fn failures_are_said_in_words() {
        let mut state = Board::new().state().clone();
        let fine = summary(&state, &Findings::default());
        assert!(!fine.iter().flat_map(Line::spans).any(|(style, _)| *style == Style::Bad));
        state.tallies[WEB].failures.insert("timed out".to_owned(), 3);
        let text: Vec<String> =
            summary(&state, &Findings::default()).iter().map(Line::text).collect();
        assert!(text.contains(&"  web: 3 times timed out".to_owned()), "{text:?}");
    }
}
