//! The screen as lines of a width, and the table that is printed once.

use jiff::Timestamp;
use switchyard_core::explain::Printable;
use unicode_width::UnicodeWidthChar;

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

/// The look of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Look {
    #[default]
    Plain,
    /// The heads of columns.
    Head,
    /// The chosen row.
    Chosen,
    /// Something is wrong.
    Wrong,
}

/// A line of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The text, not wider than the screen.
    pub text: String,
    /// The look.
    pub look: Look,
}

/// A column after the name.
struct Column {
    head: &'static str,
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
    match now.duration_since(then).as_secs().max(0) {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// Cuts a text, so that a terminal needs no more than `width` columns for it. What is not shown,
/// such as control characters, is left out.
pub fn cut(text: &str, width: usize) -> String {
    let mut left = width;
    let mut shown = String::new();
    let all = text.chars().filter(|char| Printable::shows(*char));
    for (char, needs) in all.filter_map(|char| Some((char, char.width()?))) {
        if needs > left {
            break;
        }
        left -= needs;
        shown.push(char);
    }
    shown
}

/// Cuts or fills a text to this width.
fn fit(text: &str, width: usize) -> String {
    let mut shown = cut(text, width);
    let used: usize = shown.chars().filter_map(|char| char.width()).sum();
    shown.extend(std::iter::repeat_n(' ', width - used));
    shown
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

fn row(service: &TopService, moment: &Moment<'_>, (count, name): (usize, usize)) -> String {
    let mut text = fit(&service.service, name);
    for Column { width, text: of, .. } in &COLUMNS[..count] {
        text.push_str(&format!("{:>width$}", cut(&of(service, moment), *width - 1)));
    }
    text
}

fn heads(sort: Option<Sort>, (count, name): (usize, usize)) -> String {
    let marked = |head: &str, own: Option<Sort>| match own {
        Some(_) if own == sort => format!("{head}*"),
        _ => head.to_owned(),
    };
    let mut text = fit(&marked("SERVICE", Some(Sort::Name)), name);
    for Column { head, width, sort, .. } in &COLUMNS[..count] {
        text.push_str(&format!("{:>width$}", marked(head, *sort)));
    }
    text
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

/// Draws the screen: as many lines as it has, none wider than it is.
pub fn draw(view: &View, (width, height): (usize, usize)) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let line = |text: &str, look| Line { text: cut(text, width), look };
    match view.top() {
        None => lines.push(line("switchyard: waiting for the proxy", Look::Plain)),
        Some(top) => {
            let [first, second] = node(top);
            let state = if view.is_paused { "  PAUSED" } else { "" };
            lines.push(line(&(first + state), Look::Plain));
            lines.push(line(&second, Look::Plain));
            let look = if top.problems.is_empty() { Look::Plain } else { Look::Wrong };
            lines.push(line(&problem(top), look));
        }
    }
    let body = height.saturating_sub(lines.len() + 1);
    match &view.cover {
        Some(Cover::Help) => {
            lines.extend(HELP.lines().take(body).map(|text| line(text, Look::Plain)));
        }
        Some(Cover::Explained { service, text, first }) => {
            lines.push(line(&format!("explain {service}"), Look::Head));
            let shown = text.lines().skip(*first).take(body.saturating_sub(1));
            lines.extend(shown.map(|text| line(text, Look::Plain)));
        }
        None => lines.extend(table(view, width, body)),
    }
    lines.resize(height.saturating_sub(1), Line { text: String::new(), look: Look::Plain });
    lines.push(match &view.error {
        _ if view.is_typing => line(&format!("/{}_", view.filter()), Look::Plain),
        Some(error) => line(error, Look::Wrong),
        None if view.cover.is_some() => line("any other key: back  jk scroll", Look::Plain),
        None if !view.filter().is_empty() => {
            line(&format!("/{}  {KEYS}", view.filter()), Look::Plain)
        }
        None => line(KEYS, Look::Plain),
    });
    lines
}

/// The table, and the events below it.
fn table(view: &View, width: usize, height: usize) -> Vec<Line> {
    let Some(top) = view.top() else { return Vec::new() };
    let moment = Moment { now: &top.at, minute: view.minute() };
    let events = (height / 6).clamp(1, 8).min(top.events.len());
    let rows = height.saturating_sub(events + 2);
    let services = view.services();
    let chosen = view.chosen(&services);
    let first = chosen.saturating_sub(rows / 2).min(services.len().saturating_sub(rows));
    let columns = columns(width);
    let head = heads(Some(view.sort()), columns);
    let mut lines = vec![Line { text: cut(&head, width), look: Look::Head }];
    for (place, service) in services.iter().enumerate().skip(first).take(rows) {
        let look = match service {
            _ if place == chosen => Look::Chosen,
            one if one.note.is_some() => Look::Wrong,
            _ => Look::Plain,
        };
        lines.push(Line { text: row(service, &moment, columns), look });
    }
    lines.resize(rows + 1, Line { text: String::new(), look: Look::Plain });
    if events > 0 {
        lines.push(Line { text: fit("EVENTS", width), look: Look::Head });
    }
    for event in top.events.iter().take(events) {
        let text = format!("{:>7} ago  {}", age(&event.at, &top.at), event.text);
        lines.push(Line { text: cut(&text, width), look: Look::Plain });
    }
    lines
}

/// The characters that put these lines on the screen. Without colours, looks differ all the same.
pub fn painted(lines: &[Line], colours: bool) -> String {
    let mut text = "\x1b[H".to_owned();
    for (index, line) in lines.iter().enumerate() {
        let style = match line.look {
            Look::Plain => "",
            Look::Head => "\x1b[1m",
            Look::Chosen => "\x1b[7m",
            Look::Wrong if colours => "\x1b[31m",
            Look::Wrong => "\x1b[1m",
        };
        text.push_str(if index > 0 { "\r\n" } else { "" });
        // Cleared before: the cursor stays in the last column once that is written.
        text.push_str(&format!("\x1b[K{style}{}\x1b[0m", line.text));
    }
    text
}

/// The answer as a plain table, of all Services.
pub fn plain(top: &Top) -> String {
    let mut view = View::default();
    view.set_top(top.clone());
    let moment = Moment { now: &top.at, minute: view.minute() };
    let services = view.services();
    let name = |one: &&TopService| one.service.chars().filter_map(|char| char.width()).sum();
    let widest: usize = services.iter().map(name).max().unwrap_or(0).max("SERVICE".len());
    let columns = (PRINTED, widest);
    let mut lines = node(top).to_vec();
    lines.push(match &top.problems[..] {
        [] => problem(top),
        all => {
            let shown = all.iter().map(|one| format!("! {}", cut(one, usize::MAX)));
            shown.collect::<Vec<_>>().join("\n")
        }
    });
    lines.push(String::new());
    lines.push(heads(None, columns));
    lines.extend(services.iter().map(|one| {
        let note = one.note.as_ref().map(|note| format!("  {}", cut(&note.text, usize::MAX)));
        row(one, &moment, columns) + &note.unwrap_or_default()
    }));
    lines.push(String::new());
    let event = |event: &TopEvent| format!("{}  {}", event.at, cut(&event.text, usize::MAX));
    lines.extend(top.events.iter().map(event));
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}
