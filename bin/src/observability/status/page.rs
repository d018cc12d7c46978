//! The status as text for a terminal, and as a page without resources of elsewhere.

use std::fmt::{self, Display, Write};

use switchyard_core::explain::{Printable, age};

use super::{Conntrack, Destination, NotAsAsked, Status, WatchState};
use crate::printable::counted;

/// The looks of the page: one column on a phone, light or dark as the reader's system is.
const STYLE: &str = "
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --text: #1c2430; --dim: #5c6675;
  --line: #dde2e8; --good: #1a7f4b; --bad: #b3261e }
@media (prefers-color-scheme: dark) { :root { --back: #12161c; --card: #1b212a; --text: #e6eaf0;
  --dim: #9aa5b4; --line: #2d3641; --good: #5fd39a; --bad: #ff8a80 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem; max-width: 64rem; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
header p { margin: 0; color: var(--dim) }
h1 { margin: 0; font-size: 1.25rem }
h2 { margin: 0 0 .5rem; font-size: 1rem }
main { display: grid; gap: 1rem; margin-top: 1rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)) }
section { padding: 1rem; background: var(--card); border: 1px solid var(--line); border-radius: .5rem }
dl { display: grid; grid-template-columns: auto 1fr; gap: .25rem .75rem; margin: 0 }
dt { color: var(--dim) }
dd { margin: 0; text-align: right }
.long { grid-column: 1 / -1; text-align: left }
.good { color: var(--good); font-weight: 600 }
.bad { color: var(--bad); font-weight: 600 }
";

/// The longest value that stands beside its name, in characters.
const LONG: usize = 48;

/// A part of the page: a title, and rows of a name and a value.
struct Part {
    title: &'static str,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    value: String,
    /// Whether the value is good or bad, if it is either. The words say it, too.
    is_good: Option<bool>,
}

impl Row {
    fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into(), is_good: None }
    }

    fn judged(self, is_good: bool) -> Self {
        Self { is_good: Some(is_good), ..self }
    }
}

/// A time in the past, in words.
fn ago(seconds: u64) -> String {
    format!("{} ago", age(seconds))
}

impl Status {
    /// The first sentence.
    fn summary(&self) -> String {
        let state = match self.last_sync {
            Some(_) => {
                let Self { service_ports, endpoints, .. } = self;
                format!("serves {service_ports} Service ports by {endpoints} endpoints")
            }
            None => "has not synced yet".to_owned(),
        };
        let wrong = match &self.problems[..] {
            [] => "nothing is wrong".to_owned(),
            [one] => format!("one thing is wrong: {one}"),
            [one, rest @ ..] => format!("wrong: {one}, and {} more", rest.len()),
        };
        format!("{} {state}; {wrong}", self.node)
    }

    fn parts(&self) -> Vec<Part> {
        let mut parts = vec![
            Part { title: "Is anything wrong?", rows: self.problem_rows() },
            Part { title: "How fast?", rows: self.sync_rows() },
            Part { title: "Who touched our rules?", rows: self.drift_rows() },
            Part { title: "Connection tracking", rows: conntrack_rows(self.conntrack.as_ref()) },
            Part { title: "Where does it go?", rows: self.destination_rows() },
        ];
        let row = |NotAsAsked { what, because }: &NotAsAsked| Row::new(what, because);
        if !self.not_as_asked.is_empty() {
            let rows = self.not_as_asked.iter().map(row).collect();
            parts.push(Part { title: "What is not served as it asks?", rows });
        }
        parts
    }

    fn problem_rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> =
            self.problems.iter().map(|problem| Row::new("wrong", problem).judged(false)).collect();
        if rows.is_empty() {
            rows.push(Row::new("problems", "none").judged(true));
        }
        rows.extend(self.watches.iter().map(|watch| {
            let WatchState { kind, seconds_silent, is_fresh } = watch;
            let word = if *is_fresh { "fresh" } else { "silent" };
            let value = format!("{word}, {}", ago(*seconds_silent));
            Row::new(format!("watch of {kind}"), value).judged(*is_fresh)
        }));
        if let Some(client) = &self.objects_client {
            let connected = if client.is_connected { "connected" } else { "gone" };
            let synced = if client.is_synced { "list complete" } else { "no complete list" };
            let value = format!("{connected}, {synced}, heard {}", ago(client.seconds_silent));
            rows.push(Row::new("client with objects", value).judged(client.is_synced));
        } else if self.watches.is_empty() {
            rows.push(Row::new("watches", "-"));
        }
        rows
    }

    fn sync_rows(&self) -> Vec<Row> {
        let failure = self.last_failure.as_ref().map(|failure| {
            let value = format!("{}: {}", ago(failure.seconds_ago), failure.because);
            Row::new("last failure", value).judged(false)
        });
        let Some(sync) = &self.last_sync else {
            return [Row::new("last sync", "none yet")].into_iter().chain(failure).collect();
        };
        let mut rows = vec![
            Row::new("last sync", ago(sync.seconds_ago)),
            Row::new("took", format!("{} ms", sync.milliseconds)),
            Row::new("changed", format!("{} Service ports", sync.changed)),
        ];
        if let Some(time) = sync.change_milliseconds {
            rows.insert(2, Row::new("after the change", format!("{time} ms")));
        }
        rows.extend(failure);
        rows
    }

    fn drift_rows(&self) -> Vec<Row> {
        let Some(drift) = &self.last_drift else {
            return vec![Row::new("since the start", "no other program").judged(true)];
        };
        let mut rows = vec![
            Row::new("last time", ago(drift.seconds_ago)),
            Row::new(
                "by",
                drift.by.as_deref().unwrap_or("a program that the kernel does not name"),
            ),
            Row::new("repaired", counted(drift.objects, "object")),
        ];
        rows.extend(drift.examples.iter().map(|example| Row::new("such as", example)));
        rows
    }

    fn destination_rows(&self) -> Vec<Row> {
        let Some(all) = &self.destinations else {
            return vec![Row::new("connections", "not counted (--conntrack-services-period)")];
        };
        let sum = all.iter().map(|one| one.entries).sum::<u64>().max(1);
        let some = all.iter().filter(|one| one.entries > 0);
        let row = |Destination { to, entries }: &Destination| {
            Row::new(to, format!("{entries} entries, {} %", entries * 100 / sum))
        };
        let mut rows: Vec<Row> = some.map(row).collect();
        if rows.is_empty() {
            rows.push(Row::new("connections", "none"));
        }
        rows.extend(self.counted_seconds_ago.map(|seconds| Row::new("counted", ago(seconds))));
        rows
    }

    /// Writes the status as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a text cannot fail.
        let _ = writeln!(text, "{}.", Visible(&self.summary()));
        let _ = writeln!(text, "{} mode, switchyard {}", self.mode, self.version);
        for Part { title, rows } in self.parts() {
            let _ = writeln!(text, "\n{title}");
            for Row { name, value, .. } in rows {
                let _ = writeln!(text, "  {:<22} {}", Visible(&name).to_string(), Visible(&value));
            }
        }
        text
    }

    /// Writes the status as a page of HTML, which is well-formed XML as well.
    pub fn html(&self) -> String {
        let mut html = String::new();
        let _ = self.write_html(&mut html);
        html
    }

    fn write_html(&self, html: &mut String) -> fmt::Result {
        let title = format!("{} - Switchyard", self.node);
        write!(
            html,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\" />\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\" />\n\
             <meta http-equiv=\"refresh\" content=\"10\" />\n<title>{}</title>\n\
             <style>{STYLE}</style>\n</head>\n<body>\n",
            Escaped(&title)
        )?;
        writeln!(
            html,
            "<header><h1>{}.</h1><p>{} mode, switchyard {}</p></header>\n<main>",
            Escaped(&self.summary()),
            Escaped(self.mode),
            Escaped(self.version)
        )?;
        for Part { title, rows } in self.parts() {
            writeln!(html, "<section><h2>{}</h2><dl>", Escaped(title))?;
            for Row { name, value, is_good } in rows {
                let judged = match is_good {
                    Some(true) => "good",
                    Some(false) => "bad",
                    None => "",
                };
                // Beside its name, a long text would be a narrow column.
                let long = if value.chars().count() > LONG { "long" } else { "" };
                let (name, value) = (Escaped(&name), Escaped(&value));
                writeln!(html, "<dt>{name}</dt><dd class=\"{judged} {long}\">{value}</dd>")?;
            }
            writeln!(html, "</dl></section>")?;
        }
        writeln!(html, "</main>\n</body>\n</html>")
    }
}

fn conntrack_rows(table: Option<&Conntrack>) -> Vec<Row> {
    // A value that was not measured is no 0.
    let Some(table) = table else { return vec![Row::new("entries", "-")] };
    let limit = table.limit.map_or("no limit".to_owned(), |limit| format!("of {limit}"));
    vec![
        Row::new("entries", format!("{} {limit}", table.entries)),
        Row::new("packets dropped", table.dropped_packets.to_string()),
        Row::new("insert failures", table.insert_failures.to_string()),
    ]
}

/// Text in HTML, whatever it contains.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            c if !Printable::shows(c) => f.write_char('\u{fffd}'),
            c => f.write_char(c),
        })
    }
}

/// Text in a terminal, without what it does not show.
struct Visible<'a>(&'a str);

impl Display for Visible<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |c| if Printable::shows(c) { c } else { '\u{fffd}' };
        self.0.chars().try_for_each(|c| f.write_char(shown(c)))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            ClientState,
            board::{Drift, Failure, Synced},
        },
        *,
    };

    fn status() -> Status {
        Status {
            node: "node-1".to_owned(),
            mode: "nftables",
            version: "0.1.0",
            problems: Vec::new(),
            service_ports: 4,
            endpoints: 11,
            last_sync: Some(Synced {
                seconds_ago: 14,
                milliseconds: 1.25,
                change_milliseconds: Some(1.5),
                changed: 1,
            }),
            last_failure: None,
            last_drift: None,
            watches: vec![WatchState { kind: "Service", seconds_silent: 3, is_fresh: true }],
            objects_client: Some(ClientState {
                is_connected: false,
                is_synced: true,
                seconds_silent: 9,
            }),
            conntrack: Some(Conntrack {
                entries: 812,
                limit: Some(262_144),
                dropped_packets: 0,
                insert_failures: 2,
            }),
            destinations: None,
            counted_seconds_ago: None,
            not_as_asked: Vec::new(),
        }
    }

    /// Checks that tags are closed in the order in which they are opened, and returns the text
    /// between them.
    #[track_caller]
    fn text_of(html: &str) -> String {
        let (mut open, mut text) = (Vec::new(), String::new());
        for part in html.strip_prefix("<!DOCTYPE html>").unwrap().split('<').skip(1) {
            let (tag, after) = part.split_once('>').unwrap_or_else(|| panic!("<{part}"));
            assert!(!after.contains('>'), "{after}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name), "in {html}");
            } else if !tag.ends_with('/') {
                open.push(tag.split(' ').next().unwrap());
            }
            if open.last() != Some(&"style") {
                text.push_str(after);
            }
        }
        assert_eq!(open, [""; 0]);
        text
    }

    #[test]
    fn the_page_and_the_text_have_what_the_state_has() {
        let mut status = status();
        let facts = [
            "node-1 serves 4 Service ports by 11 endpoints; nothing is wrong",
            "14 s ago",
            "1.25 ms",
            "1.5 ms",
            "812 of 262144",
            "fresh, 3 s ago",
            "gone, list complete, heard 9 s ago",
            "no other program",
            "not counted (--conntrack-services-period)",
        ];
        for text in [text_of(&status.html()), status.text()] {
            for fact in facts {
                assert!(text.contains(fact), "{fact} in {text}");
            }
            assert!(!text.contains("not served as it asks"), "{text}");
        }
        assert!(!status.html().contains("class=\"bad"), "nothing is wrong");
        status.problems = vec!["IPv4 is late".to_owned(), "more".to_owned()];
        status.last_failure = Some(Failure { seconds_ago: 130, because: "EPERM".to_owned() });
        status.last_drift = Some(Drift {
            seconds_ago: 7300,
            by: Some("nft (4711)".to_owned()),
            objects: 38,
            examples: vec!["chain lb/1".to_owned()],
        });
        status.conntrack = None;
        let counted = [("shop/cart", 3), ("other Services", 0), ("elsewhere", 1)];
        let counted = counted.map(|(to, entries)| Destination { to: to.to_owned(), entries });
        status.destinations = Some(counted.into());
        status.counted_seconds_ago = Some(10_900);
        status.watches[0].is_fresh = false;
        status.objects_client =
            Some(ClientState { is_connected: false, is_synced: false, seconds_silent: 130 });
        status.not_as_asked =
            vec![NotAsAsked { what: "shop/big".to_owned(), because: "too many".to_owned() }];
        let facts = [
            "wrong: IPv4 is late, and 1 more",
            "2 min ago: EPERM",
            "2 h ago",
            "nft (4711)",
            "38 objects",
            "chain lb/1",
            "silent, 3 s ago",
            "gone, no complete list, heard 2 min ago",
            "shop/big",
            "too many",
            "3 entries, 75 %",
            "3 h ago",
        ];
        for text in [text_of(&status.html()), status.text()] {
            for fact in facts {
                assert!(text.contains(fact), "{fact} in {text}");
            }
            assert!(!text.contains("262144"), "not measured");
            assert!(!text.contains("other Services"), "{text}");
        }
        status.last_sync = None;
        assert!(status.text().starts_with("node-1 has not synced yet; wrong: IPv4 is late"));
    }

    #[test]
    fn hostile_text_stays_text() {
        const HOSTILE: &str = "</dd><script>alert(1)</script>\"'&\u{1b}[31m\n";
        let mut status = status();
        let hostile = || HOSTILE.to_owned();
        status.node = hostile();
        status.problems = vec![hostile()];
        status.last_failure = Some(Failure { seconds_ago: 1, because: hostile() });
        status.last_drift = Some(Drift {
            seconds_ago: 1,
            by: Some(hostile()),
            objects: 1,
            examples: vec![hostile()],
        });
        status.not_as_asked = vec![NotAsAsked { what: hostile(), because: hostile() }];
        let html = status.html();
        text_of(&html);
        assert!(!html.contains("<script") && !html.contains('\u{1b}'), "{html}");
        let escaped =
            "&lt;/dd&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;\u{fffd}[31m\u{fffd}";
        // The title, the sentence (node and problem), and each row.
        assert_eq!(html.matches(escaped).count(), 9, "{html}");
        assert!(!status.text().contains('\u{1b}'));
    }
}
