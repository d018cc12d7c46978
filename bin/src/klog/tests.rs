//! Lines as klog writes them, and which are written.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use switchyard_core::{
    model::IpFamily,
    proxier::SyncReport,
    runner::{EngineEvent, Observer},
};

use super::*;
use crate::observability::metrics::tests::{outcome, partial};

#[derive(Clone, Default)]
pub(crate) struct Sink(pub(crate) Arc<Mutex<Vec<u8>>>);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn logged(format: LogFormat, verbosity: u32, log: impl FnOnce()) -> String {
    let config = LogConfig { format, verbosity, ..LogConfig::default() };
    logged_with(&config, log)
}

fn logged_with(config: &LogConfig, log: impl FnOnce()) -> String {
    let sink = Sink::default();
    let writer = sink.clone();
    tracing::subscriber::with_default(subscriber(config, move || writer.clone()), log);
    let bytes = sink.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

struct Shown;

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("two \"words\"")
    }
}

/// Splits a line of klog's text into severity, time, thread, place and message with fields.
fn parts(line: &str) -> (char, String, u32, String, String) {
    let (head, rest) = line.split_once("] ").expect(line);
    let mut words = head[1..].split_whitespace();
    let mut word = || words.next().expect(line).to_owned();
    let time = format!("{} {}", word(), word());
    let thread = word().parse().expect(line);
    (line.chars().next().unwrap(), time, thread, word(), rest.to_owned())
}

#[test]
fn text_is_klogs() {
    let line = line!() + 2;
    let text = logged(LogFormat::Text, 0, || {
        tracing::info!(name = "a\tb", count = 3, done = true, shown = %Shown, "Waiting for it");
    });
    assert!(text.ends_with('\n') && text.lines().count() == 1, "{text:?}");
    let (severity, time, thread, place, rest) = parts(text.trim_end());
    assert_eq!(severity, 'I');
    let digits: String = time.chars().filter(|c| !c.is_ascii_digit()).collect();
    assert_eq!(digits, " ::.", "{time:?}");
    assert_eq!(time.len(), "1121 09:08:59.667744".len(), "{time:?}");
    assert_eq!(thread, std::process::id());
    assert_eq!(place, format!("tests.rs:{line}"));
    assert_eq!(rest, r#""Waiting for it" name="a\tb" count=3 done=true shown="two \"words\"""#);
    // The process id is right-aligned in seven columns.
    let expected = format!("{time} {:>7} ", std::process::id());
    assert!(text[1..].starts_with(&expected), "{text:?}");
}

#[test]
fn errors_come_first() {
    let text = logged(LogFormat::Text, 0, || {
        tracing::error!(part = 1.0, err = %Shown, rules = "a\nb", "Failed");
        tracing::info!(target: "switchyard::line", "FLAG: --x=\"y\"");
    });
    let (_, _, _, _, rest) = parts(&text);
    let (failed, flag) = rest.split_once(" >\nI").unwrap();
    assert_eq!(failed, "\"Failed\" err=\"two \\\"words\\\"\" part=1 rules=<\n\ta\n\tb\n");
    assert!(flag.ends_with("] FLAG: --x=\"y\"\n"), "{flag}");
}

#[test]
fn severities_are_klogs() {
    let text = logged(LogFormat::Text, 4, || {
        tracing::error!("e");
        tracing::warn!("w");
        tracing::info!("i");
        tracing::debug!("d");
        tracing::trace!("t");
    });
    let severities: String = text.lines().map(|line| parts(line).0).collect();
    assert_eq!(severities, "EWIII");
}

#[test]
fn verbosity_chooses() {
    let count = |verbosity| {
        logged(LogFormat::Text, verbosity, || {
            tracing::info!("0");
            tracing::info!(target: "switchyard::v1", "1");
            tracing::debug!("2");
            tracing::debug!(target: "switchyard_core::runner::v3", "3");
            tracing::trace!("4");
            tracing::trace!(target: "switchyard_nft::v9", "9");
            tracing::info!(target: "hyper::proto", "a library");
            tracing::debug!(target: "hyper::proto", "a library");
        })
        .lines()
        .count()
    };
    let counts = [0, 1, 2, 3, 4, 5, 6, 8, 9].map(count);
    assert_eq!(counts, [1, 2, 3, 4, 5, 5, 5 + 2, 5 + 2, 6 + 2]);
}

#[test]
fn files_have_their_own_verbosity() {
    let count = |pattern: &str| {
        let vmodule = vec![(pattern.to_owned(), 4)];
        let config = LogConfig { vmodule, ..LogConfig::default() };
        let log = || {
            tracing::info!("0");
            tracing::trace!("4");
        };
        logged_with(&config, log).lines().count()
    };
    let patterns = ["tests", "t*", "*src/klog/*", "t???"];
    assert_eq!(patterns.map(count), [2, 2, 2, 1]);
    // A pattern can raise the verbosity of a file, and not lower it.
    let vmodule = vec![("tests".to_owned(), 0)];
    let config = LogConfig { vmodule, verbosity: 4, ..LogConfig::default() };
    assert_eq!(logged_with(&config, || tracing::trace!("4")).lines().count(), 1);
}

#[test]
fn json_is_klogs() {
    let line = line!() + 2;
    let text = logged(LogFormat::Json, 2, || {
        tracing::debug!(count = 3, name = "x", ratio = 0.5, "Synced");
        tracing::error!(err = %Shown, "Failed");
    });
    // serde_json reads numbers less exactly than std, by default.
    let time = |line: &str| line.split([':', ',']).nth(1).unwrap().parse().unwrap();
    let times: Vec<f64> = text.lines().map(time).collect();
    assert!(times[0] > 1.6e12 && times[1] < 1e13, "milliseconds: {times:?}");
    // Errors have no verbosity.
    let expected = format!(
        "{{\"ts\":{},\"caller\":\"klog/tests.rs:{line}\",\"msg\":\"Synced\",\"v\":2,\
         \"count\":3,\"name\":\"x\",\"ratio\":0.5}}\n\
         {{\"ts\":{},\"caller\":\"klog/tests.rs:{}\",\"msg\":\"Failed\",\
         \"err\":\"two \\\"words\\\"\"}}\n",
        times[0],
        times[1],
        line + 1
    );
    assert_eq!(text, expected);
}

#[test]
fn small_syncs_have_few_lines() {
    let (change, report) = (partial(IpFamily::V4), SyncReport::default());
    for (verbosity, milliseconds, expected) in
        [(1, 100, 0..=0), (2, 3, 1..=50), (2, 100, 100..=100), (3, 3, 100..=100)]
    {
        let mut synced = outcome(&change, &report, &[]);
        synced.duration = Duration::from_millis(milliseconds);
        let (synced, observer) = (EngineEvent::Synced(synced), switchyard::Log::new("node-1"));
        let log = logged(LogFormat::Text, verbosity, || {
            (0..100).for_each(|_| observer.on_event(&synced));
        });
        let lines = log.matches("\"Synced\" full=false").count();
        assert!(expected.contains(&lines), "-v={verbosity}, {milliseconds} ms: {lines}");
    }
}
