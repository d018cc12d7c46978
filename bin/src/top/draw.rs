//! The screen, and the table that is printed once.

use std::iter;

use jiff::Timestamp;
use ratatui_core::{
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Style, Stylize},
    terminal::Frame,
    text::{Line, Text},
};
use ratatui_widgets::table::{Row, Table, TableState};
use switchyard_core::explain::{self, Printable};

use super::{
    minute::Minute,
    view::{Cover, Sort, View},
};
use crate::explain::top::{Latency, Proxied, TableUse, Top, TopEvent, TopService};

/// The keys, at the foot of the screen.
const KEYS: &str = "q quit  jk choose  enter explain  s sort  / filter  p pause  ? help";
const HELP: &str = "\
up down j k, page up, page down, home, end, g G   choose a Service
enter   the answer of `switchyard explain` about it
/       show Services whose name has these letters; escape shows all
s       sort by the next column, or by one of:
        n new connections   c share of connection tracking   t stuck connections
        e endpoints, the fewest first   l last change   a name
p       pause, and go on
q       quit

NEW/S   new connections a second: those that a look at connection tracking finds
        and the one before did not
SHARE   entries of connection tracking that lead to the Service, of all entries
STUCK   connections whose endpoint acknowledges nothing
EP      endpoints that get new connections, of all that the port has, of the
        port that has the fewest
NOTE    the worst that is wrong; enter, or a wide screen, has it in words
LAST MIN  new connections in each 10 s of the last minute, beside the most of these
-       not measured";
/// The least width of names beside the columns that a narrow screen has, too.
const LEAST_NAME: usize = 14;
/// The same beside the others.
const USUAL_NAME: usize = 26;
/// The same beside the words of notes.
const LONG_NAME: usize = 40;

/// A column after the name.
struct Column {
    head: &'static str,
    /// The width, with a space before.
    width: usize,
    /// The least width of names beside it.
    beside: usize,
    sort: Option<Sort>,
    text: fn(&TopService, &Moment<'_>) -> String,
}

/// The time of an answer, and before.
struct Moment<'a> {
    now: &'a str,
    minute: &'a Minute,
}

/// The columns, the most important first: narrow screens have the first ones. The last minute needs
/// more than one answer.
const COLUMNS: [Column; 10] = [
    column("NEW/S", 8, Some(Sort::New), |one, _| rate(one.new_per_second)),
    column("STUCK", 7, Some(Sort::Stuck), |one, _| stuck(one.stuck)),
    column("SHARE", 8, Some(Sort::Share), |one, _| percent(one.share)),
    column("EP", 8, Some(Sort::Endpoints), |one, _| endpoints(one)),
    column("NOTE", 9, None, |one, _| {
        one.note.as_ref().map_or_else(|| "-".to_owned(), |note| note.code.clone())
    }),
    column("CHANGE", 14, Some(Sort::Change), change),
    Column { beside: USUAL_NAME, ..column("FLOWS", 10, None, |one, _| number(one.flows)) },
    Column { beside: USUAL_NAME, ..column("PORTS", 16, None, |one, _| ports(&one.ports)) },
    Column {
        beside: USUAL_NAME,
        ..column("LAST MIN", 10, None, |one, moment| moment.minute.bars(&one.service))
    },
    Column {
        beside: LONG_NAME,
        ..column("", 34, None, |one, _| {
            one.note.as_ref().map_or_else(String::new, |note| note.text.clone())
        })
    },
];
/// The columns of the table that is printed once, which has the words of notes at the end.
const PRINTED: usize = COLUMNS.len() - 2;

const fn column(
    head: &'static str,
    width: usize,
    sort: Option<Sort>,
    text: fn(&TopService, &Moment<'_>) -> String,
) -> Column {
    Column { head, width, beside: LEAST_NAME, sort, text }
}

/// The first port, and the number of others.
fn ports(ports: &[String]) -> String {
    match ports {
        [] => "-".to_owned(),
        [one] => one.clone(),
        [first, others @ ..] => format!("{first} +{}", others.len()),
    }
}

/// The endpoints that are used, of all if these are others.
fn endpoints(one: &TopService) -> String {
    let TopService { endpoints, all_endpoints, .. } = one;
    match endpoints == all_endpoints {
        true => endpoints.to_string(),
        false => format!("{endpoints}/{all_endpoints}"),
    }
}

fn number(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn rate(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value > 0.0 && value < 9.95 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

fn percent(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) => format!("{} %", rate(Some(value))),
    }
}

fn stuck(value: Option<u64>) -> String {
    match value {
        Some(value) if value > 0 => format!("{value} !"),
        value => number(value),
    }
}

fn change(one: &TopService, moment: &Moment<'_>) -> String {
    let Some(change) = &one.last_change else { return "-".to_owned() };
    let mut text = age(&change.at, moment.now);
    for (sign, count) in [("+", change.added), ("-", change.removed)] {
        if count > 0 {
            text.push_str(&format!(" {sign}{count}"));
        }
    }
    text
}

/// The time from `then` to `now`.
fn age(then: &str, now: &str) -> String {
    let (Ok(then), Ok(now)) = (then.parse::<Timestamp>(), now.parse::<Timestamp>()) else {
        return "-".to_owned();
    };
    explain::age(now.duration_since(then).as_secs().max(0).unsigned_abs())
}

/// A text without what is not shown, such as control characters.
fn clean(text: &str) -> String {
    text.chars().filter(|char| Printable::shows(*char)).collect()
}

/// The columns that have room beside the names, and the width of names.
fn columns(width: usize) -> (usize, usize) {
    let (mut count, mut name) = (0, width);
    for column in &COLUMNS {
        if name < column.beside + column.width {
            break;
        }
        (count, name) = (count + 1, name - column.width);
    }
    (count, name)
}

/// The name of a Service, and the texts of its columns.
fn texts(service: &TopService, moment: &Moment<'_>, count: usize) -> Vec<String> {
    let cut = |column: &Column| {
        let text = (column.text)(service, moment);
        format!("{text:.0$}", column.width - 1)
    };
    iter::once(clean(&service.service)).chain(COLUMNS[..count].iter().map(cut)).collect()
}

/// The heads of the same, with a mark at the one of the order.
fn heads(sort: Option<Sort>, count: usize) -> Vec<String> {
    let all = iter::once(("SERVICE", Some(Sort::Name)));
    let all = all.chain(COLUMNS[..count].iter().map(|column| (column.head, column.sort)));
    let mark = |own: Option<Sort>| if own.is_some() && own == sort { "*" } else { "" };
    all.map(|(head, own)| format!("{head}{}", mark(own))).collect()
}

/// The lines about the node.
fn node(top: &Top) -> [String; 2] {
    let Top { node, mode, version, services, .. } = top;
    let first = format!("switchyard {version}  {node}  {mode}  {} Services", services.len());
    let mut second = match top.conntrack {
        None => "conntrack -".to_owned(),
        Some(TableUse { entries, limit: None, dropped_packets }) => {
            format!("conntrack {entries}, no limit  dropped {dropped_packets}")
        }
        Some(TableUse { entries, limit: Some(limit), dropped_packets }) => {
            let share = percent(Some(100.0 * entries as f64 / limit.max(1) as f64));
            format!("conntrack {entries} / {limit}  {share}  dropped {dropped_packets}")
        }
    };
    let milliseconds = |of: fn(&Latency) -> f64| top.latency.as_ref().map(of);
    let [p50, p99] =
        [milliseconds(|it| it.p50_milliseconds), milliseconds(|it| it.p99_milliseconds)];
    second.push_str(&format!("  to kernel p50 {} p99 {} ms", rate(p50), rate(p99)));
    if let Some(Proxied { active, taken }) = top.proxied {
        second.push_str(&format!("  proxied {active} now, {taken} taken"));
    }
    [first, second]
}

fn problem(top: &Top) -> String {
    match &top.problems[..] {
        [] => "no problems".to_owned(),
        [one] => format!("! {one}"),
        [first, others @ ..] => format!("! {first} (and {} more)", others.len()),
    }
}

fn line(text: &str) -> Line<'static> {
    Line::raw(clean(text))
}

/// Draws the screen, with what is wrong in a style of its own.
pub fn draw(frame: &mut Frame<'_>, view: &View, wrong: Style) {
    let above = match view.top() {
        None => vec![line("switchyard: waiting for the proxy")],
        Some(top) => {
            let [first, second] = node(top);
            let state = if view.is_paused { "  PAUSED" } else { "" };
            let look = if top.problems.is_empty() { Style::new() } else { wrong };
            vec![line(&(first + state)), line(&second), line(&problem(top)).style(look)]
        }
    };
    let below = match &view.error {
        _ if view.is_typing => line(&format!("/{}_", view.filter())),
        Some(error) => line(error).style(wrong),
        None if view.cover.is_some() => line("any other key: back  jk scroll"),
        None if !view.filter().is_empty() => line(&format!("/{}  {KEYS}", view.filter())),
        None => line(KEYS),
    };
    let parts =
        [Constraint::Length(above.len() as u16), Constraint::Fill(1), Constraint::Length(1)];
    let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Text::from(above), head);
    frame.render_widget(below, foot);
    match &view.cover {
        Some(Cover::Help) => frame.render_widget(Text::raw(HELP), body),
        Some(Cover::Explained { service, text, first }) => {
            let title = line(&format!("explain {service}")).bold();
            let shown = text.lines().skip(*first).take(body.height.into()).map(line);
            frame.render_widget(Text::from_iter(iter::once(title).chain(shown)), body);
        }
        None => services(frame, view, wrong, body),
    }
}

/// Draws the table, and the events below it.
fn services(frame: &mut Frame<'_>, view: &View, wrong: Style, body: Rect) {
    let Some(top) = view.top() else { return };
    let events = usize::from(body.height / 6).clamp(1, 8).min(top.events.len());
    let parts = [Constraint::Fill(1), Constraint::Length(events as u16 + 1)];
    let [body, below] = Layout::vertical(parts).areas(body);
    let event =
        |event: &TopEvent| line(&format!("{:>7} ago  {}", age(&event.at, &top.at), event.text));
    let title = (events > 0).then(|| Line::raw("EVENTS").bold());
    let events = top.events.iter().take(events).map(event);
    frame.render_widget(Text::from_iter(title.into_iter().chain(events)), below);

    let moment = Moment { now: &top.at, minute: view.minute() };
    let (count, name) = columns(body.width.into());
    let row = |texts: Vec<String>| {
        // The words of notes, which have no head, are as names.
        let side = |place: usize| match place {
            0 => Alignment::Left,
            place if COLUMNS[place - 1].head.is_empty() => Alignment::Left,
            _ => Alignment::Right,
        };
        let cells = texts.into_iter().enumerate();
        Row::new(cells.map(|(place, text)| Line::raw(text).alignment(side(place))))
    };
    // A large table is not drawn as a whole.
    let shown = usize::from(body.height).saturating_sub(1);
    let all = view.services();
    let chosen = view.chosen(&all);
    let first = chosen.saturating_sub(shown / 2).min(all.len().saturating_sub(shown));
    let rows = all.iter().skip(first).take(shown).map(|one| {
        let look = if one.note.is_some() { wrong } else { Style::new() };
        row(texts(one, &moment, count)).style(look)
    });
    let widths = COLUMNS[..count].iter().map(|column| column.width - 1);
    let widths = iter::once(name).chain(widths).map(|width| Constraint::Length(width as u16));
    let table = Table::new(rows, widths)
        .column_spacing(1)
        .header(row(heads(Some(view.sort()), count)).bold())
        .row_highlight_style(Style::new().reversed());
    let mut state = TableState::new().with_selected(Some(chosen - first));
    frame.render_stateful_widget(table, body, &mut state);
}

/// The answer as a plain table, of all Services.
pub fn plain(top: &Top) -> String {
    let mut view = View::default();
    view.set_top(top.clone());
    let moment = Moment { now: &top.at, minute: view.minute() };
    let services = view.services();
    let width = |text: &str| Line::raw(text).width();
    let widest = services.iter().map(|one| width(&clean(&one.service))).max().unwrap_or(0);
    let widest = widest.max("SERVICE".len());
    let row = |texts: Vec<String>| {
        let mut line = texts[0].clone() + &" ".repeat(widest - width(&texts[0]));
        for (text, Column { width, .. }) in texts[1..].iter().zip(&COLUMNS) {
            line.push_str(&format!("{text:>width$}"));
        }
        line
    };
    let mut lines = node(top).to_vec();
    match &top.problems[..] {
        [] => lines.push(problem(top)),
        all => lines.extend(all.iter().map(|one| format!("! {one}"))),
    }
    lines.extend([String::new(), row(heads(None, PRINTED))]);
    lines.extend(services.iter().map(|one| {
        let note = one.note.as_ref().map(|note| format!("  {}", note.text));
        row(texts(one, &moment, PRINTED)) + &note.unwrap_or_default()
    }));
    lines.push(String::new());
    lines.extend(top.events.iter().map(|event| format!("{}  {}", event.at, event.text)));
    lines.iter().map(|line| clean(line).trim_end().to_owned() + "\n").collect()
}
