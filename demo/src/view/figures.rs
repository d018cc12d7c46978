//! The pieces of which the acts make their summaries.

use super::{
    line::{Line, Style},
    ms, thousands,
};
use crate::{board::State, stage::Changes};

/// The column in which the figures of the lower part end.
const FIGURES: usize = 13;

/// A line for each Service, with a heading.
pub fn services_table(state: &State) -> Vec<Line> {
    let mut lines = vec![Line::new().with(
        Style::Bold,
        format!(
            "{:<10}{:>12}{:>9}{:>9}{:>9}{:>9}",
            "Service", "connections", "refused", "failed", "p50 ms", "p99 ms"
        ),
    )];
    lines.extend(services(state));
    lines
}

fn services(state: &State) -> impl Iterator<Item = Line> {
    state.cast.roles.iter().zip(&state.tallies).map(|(role, tally)| {
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
pub fn failures(state: &State) -> impl Iterator<Item = Line> {
    state.cast.roles.iter().zip(&state.tallies).flat_map(|(role, tally)| {
        tally.failures.iter().map(|(what, count)| {
            Line::new().with(Style::Bad, format!("  {}: {count} times {what}", role.name))
        })
    })
}

/// The connections that were open all the time, `broken` of which broke.
pub fn held(held: u64, answers: u64, broken: u64) -> Line {
    Line::new()
        .with(Style::Plain, format!("  {held} connections stayed open: "))
        .with(Style::Plain, format!("{} answers, ", thousands(answers)))
        .with(verdict(broken), format!("{broken} broken"))
}

/// The changes to `web`.
pub fn changes(changes: &Changes) -> Vec<Line> {
    let since = format!(
        "last connection to a removed one; {} since, none to it",
        thousands(changes.since_removed)
    );
    let removed = changes.removed.map_or("none".to_owned(), ms);
    vec![
        figure(&ms(changes.added), "first connection to an added endpoint"),
        figure(&removed, &since),
        figure(
            &format!("{:.1} %", changes.weighed),
            "of connections to an endpoint of 4 with 7 tenths of the weight",
        ),
    ]
}

/// A figure, and its meaning.
pub fn figure(figure: &str, what: &str) -> Line {
    let mut line = Line::new();
    line.push_right(Style::Bold, figure, FIGURES);
    line.with(Style::Plain, format!("  {what}"))
}

/// Something to look at next.
pub fn hint(where_to: &str, what: &str) -> Line {
    Line::new().with(Style::Plain, format!("  {where_to:<55} ")).with(Style::Dim, what)
}

/// Whether a number of failures is good.
pub fn verdict(failures: u64) -> Style {
    if failures == 0 { Style::Good } else { Style::Bad }
}
