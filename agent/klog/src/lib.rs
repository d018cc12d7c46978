//! The log of a process in the formats of klog, Kubernetes' log library, for events of `tracing`.
//! Programs that read kube-proxy's logs can read these.
//!
//! [`start`] sends the events of the whole process to a log. [`Log`], the handle that it returns,
//! changes what is logged, and writes the lines that wait in a buffer.
//!
//! The target of an event carries what klog knows and `tracing` does not. `::v` and a number at its
//! end, as in `switchyard_core::v5`, are the verbosity of the event; without the two, the level
//! decides: 0 for INFO and worse, 2 for DEBUG, 4 for TRACE. An event whose target has `::line` is
//! written as the message alone, unquoted and without fields.

#![forbid(unsafe_code)]

mod config;
mod fields;
mod json;
mod streams;
mod text;
mod verbosity;

use std::{fmt, io};

use tracing::Subscriber;
use tracing_subscriber::{
    Layer, fmt::MakeWriter, layer::SubscriberExt, registry::Registry, reload,
};

pub use self::config::{LogConfig, LogFormat};
use self::{streams::Streams, verbosity::Verbosity};

/// Why a log could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The process has a subscriber for its events already.
    #[error("cannot initialize logging")]
    Twice(#[from] tracing::subscriber::SetGlobalDefaultError),
    /// The thread that writes buffered lines could not be started.
    #[error("cannot start a thread for the log")]
    Thread(#[from] io::Error),
}

/// The handle of a log that was started. Clones are handles of the same log.
#[derive(Clone)]
pub struct Log {
    filter: reload::Handle<Verbosity, Registry>,
    streams: Streams,
}

impl Log {
    /// Writes the lines that wait in a buffer. Call this before the program ends.
    pub fn flush(&self) {
        self.streams.flush();
    }

    /// Logs what `-v` with this value lets through, from now on; `--vmodule` stays as it is.
    /// Returns false if the log is gone.
    pub fn set_verbosity(&self, verbosity: u32) -> bool {
        self.filter.modify(|filter| filter.set(verbosity)).is_ok()
    }

    /// Logs what the verbosity and the `vmodule` of `config` let through, from now on. The other
    /// fields have no effect. Returns false if the log is gone.
    pub fn set_levels(&self, config: &LogConfig) -> bool {
        self.filter.modify(|filter| *filter = Verbosity::new(config)).is_ok()
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

/// Starts this process's log. Only a program's `main` should call it, once: the log takes the
/// events of every thread.
pub fn start(config: &LogConfig) -> Result<Log, LogError> {
    let streams = Streams::new(config);
    let (subscriber, filter) = with_handle(config, streams.clone());
    tracing::subscriber::set_global_default(subscriber)?;
    streams.flush_every(config.flush_frequency)?;
    Ok(Log { filter, streams })
}

/// Returns a subscriber that writes to `writer`, for a test or for a part of a program. Streams and
/// buffers of `config` have no effect.
pub fn subscriber<W>(config: &LogConfig, writer: W) -> impl Subscriber + Send + Sync + use<W>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    with_handle(config, writer).0
}

/// Returns a subscriber, and a handle that changes its filter.
fn with_handle<W>(
    config: &LogConfig,
    writer: W,
) -> (impl Subscriber + Send + Sync + use<W>, reload::Handle<Verbosity, Registry>)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let base = tracing_subscriber::fmt::layer().with_writer(writer);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match config.format {
        LogFormat::Text => base.event_format(text::Text::default()).boxed(),
        LogFormat::Json => base.event_format(json::Json).boxed(),
    };
    let (filter, handle) = reload::Layer::new(Verbosity::new(config));
    (Registry::default().with(layer.with_filter(filter)), handle)
}

#[cfg(test)]
mod tests {
    use std::{
        fmt,
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, verbosity: u32, log: impl FnOnce()) -> String {
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
        assert_eq!(place, format!("lib.rs:{line}"));
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
        let patterns = ["lib", "klog", "l*", "agent/*/src/*", "l?"];
        assert_eq!(patterns.map(count), [2, 2, 2, 2, 1]);
        // A pattern can raise the verbosity of a file, and not lower it.
        let vmodule = vec![("lib".to_owned(), 0)];
        let config = LogConfig { vmodule, verbosity: 4, ..LogConfig::default() };
        assert_eq!(logged_with(&config, || tracing::trace!("4")).lines().count(), 1);
    }

    #[test]
    fn json_is_klogs() {
        let text = logged(LogFormat::Json, 2, || {
            tracing::debug!(count = 3, name = "x", ratio = 0.5, "Synced");
            tracing::error!(err = %Shown, "Failed");
        });
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["msg"], "Synced");
        assert_eq!(lines[0]["v"], 2);
        assert_eq!(lines[0]["count"], 3);
        assert_eq!(lines[0]["name"], "x");
        assert_eq!(lines[0]["ratio"], 0.5);
        assert!(lines[0]["caller"].as_str().unwrap().starts_with("src/lib.rs:"), "{text}");
        assert!(text.starts_with("{\"ts\":"), "{text}");
        assert!(lines[1]["msg"] == "Failed" && text.ends_with("\"err\":\"two \\\"words\\\"\"}\n"));
        let milliseconds = lines[0]["ts"].as_f64().unwrap();
        assert!(milliseconds > 1.6e12, "{milliseconds}");
        assert_eq!(lines[1]["err"], "two \"words\"");
        assert_eq!(lines[1].get("v"), None, "errors have no verbosity");
    }
}
