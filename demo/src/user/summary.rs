//! The summary that stays on the screen: the figures, and the next commands to try.

use super::script::Findings;
use crate::{
    board::State,
    view::{self, Line, Style, figure, hint, ms, seconds, thousands, verdict},
};

/// The summary, at most as high and wide as a small terminal.
pub fn summary(state: &State, findings: &Findings) -> Vec<Line> {
    let (held, broken) = findings.held;
    let (least, greatest) = findings.shares;
    let title = |text: &str| Line::new().with(Style::Bold, text);
    let mut lines = view::services_table(state);
    lines.extend(view::failures(state));
    lines.push(view::held(held, findings.held_answers, broken));
    lines.push(figure(
        &format!("{least:.1} %"),
        &format!("to {greatest:.1} % of connections to each of 3 endpoints"),
    ));
    lines.push(title("A server that did not answer, and was still listed"));
    lines.extend(silence(findings));
    lines.push(title("After the rename of a manifest"));
    lines.extend(view::changes(&findings.changes));
    lines.push(figure(&ms(findings.added_again), "first connection to an endpoint that came back"));
    if let Some(usage) = findings.usage {
        let used = format!("KiB of memory and {} descriptors of the proxy", usage.descriptors);
        lines.push(figure(&thousands(usage.memory), &used));
    }
    lines.push(title("Look next at"));
    let program = "target/release/switchyard";
    let command = format!("{program} --proxy-mode userspace --manifests examples");
    lines.push(Line::new().with(Style::Plain, format!("  {command}")));
    lines.push(hint("docs/userspace.md, docs/load-balancing.md, examples/", "how it works"));
    lines
}

fn silence(findings: &Findings) -> Vec<Line> {
    let mut connections =
        figure(&thousands(findings.during_silence), "connections meanwhile; failed: ");
    let failed = findings.failed_in_silence;
    connections.push(verdict(failed), failed.to_string());
    vec![
        connections,
        figure(&findings.waited.to_string(), "of them waited for it, and took the next endpoint"),
        figure(&seconds(findings.back), "first connection to it, once it answered again"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        board::Board,
        cast::WEB,
        user::{LOOPBACK, proxy::Usage},
    };

    #[test]
    fn the_summary_fits_a_small_terminal() {
        let mut state = Board::new(&LOOPBACK).state().clone();
        for tally in &mut state.tallies {
            tally.refused = 1_234_567;
            tally.latencies = vec![1_234_567; 3].into();
        }
        let findings = Findings {
            during_silence: 1_234_567,
            held: (4, 0),
            held_answers: 123_456,
            usage: Some(Usage { descriptors: 12_345, memory: 1_234_567 }),
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
        let mut state = Board::new(&LOOPBACK).state().clone();
        let is_bad = |lines: &[Line]| {
            lines.iter().flat_map(Line::spans).any(|(style, _)| *style == Style::Bad)
        };
        assert!(!is_bad(&summary(&state, &Findings::default())));
        state.tallies[WEB].failures.insert("timed out".to_owned(), 3);
        let lines = summary(&state, &Findings::default());
        assert!(lines.iter().any(|line| line.text() == "  web: 3 times timed out"));
        let silence = Findings { failed_in_silence: 1, ..Findings::default() };
        assert!(is_bad(&super::silence(&silence)));
    }
}
