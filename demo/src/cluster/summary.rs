//! The summary that stays on the screen: the figures, and the next commands to try.

use super::findings::Findings;
use crate::{
    board::State,
    view::{self, Line, Style, figure, hint, ms, thousands, verdict},
};

/// The summary, at most as high and wide as a small terminal.
pub fn summary(state: &State, findings: &Findings) -> Vec<Line> {
    let (held, broken) = findings.held;
    let refused = format!(
        "first refusal, without endpoints; first answer, with them: {}",
        ms(findings.restored)
    );
    let rules = findings.rules;
    let title = |text: &str| Line::new().with(Style::Bold, text);
    let mut lines = view::services_table(state);
    lines.extend(view::failures(state));
    lines.push(view::held(held, findings.held_answers, broken));
    lines.push(title(match findings.has_server {
        true => "After the request to a genuine API server",
        false => "After the rename of a manifest",
    }));
    lines.extend(view::changes(&findings.changes));
    lines.push(figure(&ms(findings.refused), &refused));
    lines.push(title("Killed with SIGKILL, under load"));
    lines.extend(outage(findings));
    lines.push(title("In the kernel (nft list table ip kube-proxy)"));
    lines.push(figure(&rules.chains.to_string(), &format!("chains, {} rules", rules.rules)));
    lines.push(title("Look next at"));
    lines.push(hint("target/release/switchyard render --manifests examples", "the rules"));
    lines.push(hint("docs/nftables.md, docs/architecture.md, examples/", "how to read them"));
    lines
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{board::Board, cast::WEB, cluster::CLUSTER, stage::Changes};

    #[test]
    fn the_summary_fits_a_small_terminal() {
        let mut state = Board::new(&CLUSTER).state().clone();
        for tally in &mut state.tallies {
            tally.refused = 1_234_567;
            tally.latencies = vec![1_234_567; 3].into();
            for endpoint in &mut tally.endpoints {
                endpoint.count = 1_234_567;
            }
        }
        let findings = Findings {
            changes: Changes {
                removed: Some(Duration::from_secs(100)),
                since_removed: 12_345_678,
                ..Changes::default()
            },
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
    fn the_summary_names_the_source_of_changes() {
        let state = Board::new(&CLUSTER).state().clone();
        for (has_server, part) in [(false, "rename of a manifest"), (true, "genuine API server")] {
            let lines = summary(&state, &Findings { has_server, ..Findings::default() });
            assert!(lines.iter().any(|line| line.text().contains(part)), "{part}");
        }
    }

    #[test]
    fn failures_are_said_in_words() {
        let mut state = Board::new(&CLUSTER).state().clone();
        let fine = summary(&state, &Findings::default());
        assert!(!fine.iter().flat_map(Line::spans).any(|(style, _)| *style == Style::Bad));
        state.tallies[WEB].failures.insert("timed out".to_owned(), 3);
        let text: Vec<String> =
            summary(&state, &Findings::default()).iter().map(Line::text).collect();
        assert!(text.contains(&"  web: 3 times timed out".to_owned()), "{text:?}");
    }
}
