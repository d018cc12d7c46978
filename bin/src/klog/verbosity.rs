//! The filter of events by `-v` and `--vmodule`.

use tracing::{Level, Metadata, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::layer::{Context, Filter};

use crate::klog::{config::LogConfig, fields::verbosity};

/// The prefix of the names of this workspace's crates, whose messages follow `-v` exactly.
const OURS: &str = "switchyard";

pub(crate) struct Verbosity {
    /// `-v`
    usual: u32,
    /// `--vmodule`: patterns and the verbosity of the files that match.
    files: Vec<(String, u32)>,
}

impl Verbosity {
    pub(crate) fn new(config: &LogConfig) -> Self {
        Self { usual: config.verbosity, files: config.vmodule.clone() }
    }

    /// Changes `-v`.
    pub(crate) fn set(&mut self, verbosity: u32) {
        self.usual = verbosity;
    }

    /// Whether the filter passes events and spans with these metadata.
    fn passes(&self, metadata: &Metadata<'_>) -> bool {
        if !is_ours(metadata.target()) {
            return *metadata.level() <= theirs(self.usual);
        }
        // Errors and warnings are always logged.
        if *metadata.level() <= Level::WARN {
            return true;
        }
        let verbosity = verbosity(metadata);
        // As with klog, `--vmodule` can raise the verbosity of a file, and not lower it.
        verbosity <= self.usual || self.of_file(metadata).is_some_and(|most| verbosity <= most)
    }

    /// The verbosity of the file by the first pattern of `--vmodule` that matches.
    fn of_file(&self, metadata: &Metadata<'_>) -> Option<u32> {
        let file = metadata.file().filter(|_| !self.files.is_empty())?;
        self.files.iter().find(|(pattern, _)| names(pattern, file)).map(|(_, most)| *most)
    }
}

impl<S: Subscriber> Filter<S> for Verbosity {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.passes(metadata)
    }

    fn callsite_enabled(
        &self,
        metadata: &'static Metadata<'static>,
    ) -> tracing::subscriber::Interest {
        match self.passes(metadata) {
            true => tracing::subscriber::Interest::always(),
            false => tracing::subscriber::Interest::never(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let most = self.files.iter().map(|(_, most)| *most).chain([self.usual]).max();
        // A message whose target names a verbosity has the level of that verbosity.
        let ours = match most.unwrap_or_default() {
            0..=1 => LevelFilter::INFO,
            2..=3 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        };
        Some(ours.max(theirs(self.usual)))
    }
}

fn is_ours(target: &str) -> bool {
    target.starts_with(OURS)
}

/// The level up to which events of libraries are logged at this `-v`.
fn theirs(verbosity: u32) -> LevelFilter {
    match verbosity {
        0..=5 => LevelFilter::WARN,
        6..=8 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

/// Whether a pattern matches a source file. The pattern is matched against the file's name without
/// its ending, or against the whole path if the pattern has a slash. A `mod.rs` also matches by the
/// name of its folder, and a `lib.rs` or `main.rs` by the name of its crate's folder.
fn names(pattern: &str, file: &str) -> bool {
    let file = file.strip_suffix(".rs").unwrap_or(file);
    if pattern.contains('/') {
        return matches(pattern.as_bytes(), file.as_bytes());
    }
    let mut parts = file.rsplit('/');
    let name = parts.next().unwrap_or(file);
    let folder = match name {
        "mod" => parts.next(),
        "lib" | "main" => parts.find(|part| *part != "src"),
        _ => None,
    };
    [Some(name), folder].into_iter().flatten().any(|n| matches(pattern.as_bytes(), n.as_bytes()))
}

/// Whether `text` matches `pattern`, in which `*` matches any text and `?` matches one byte.
fn matches(mut pattern: &[u8], mut text: &[u8]) -> bool {
    // What follows the last star, and the text that the star has not taken.
    let mut last: Option<(&[u8], &[u8])> = None;
    loop {
        match (pattern, text) {
            ([b'*', rest @ ..], _) => {
                last = Some((rest, text));
                pattern = rest;
            }
            ([p, pattern_rest @ ..], [t, text_rest @ ..]) if *p == b'?' || p == t => {
                (pattern, text) = (pattern_rest, text_rest);
            }
            ([], []) => return true,
            // The last star takes one byte more. The stars before stand as far left as they can.
            _ => match last {
                Some((after, [_, untaken @ ..])) => {
                    last = Some((after, untaken));
                    (pattern, text) = (after, untaken);
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_and_paths() {
        for (pattern, file, expected) in [
            ("run", "backend-iptables/src/tool/run.rs", true),
            ("tool", "backend-iptables/src/tool/run.rs", false),
            ("tool", "backend-iptables/src/tool/mod.rs", true),
            ("mod", "backend-iptables/src/tool/mod.rs", true),
            ("conntrack", "conntrack/src/lib.rs", true),
            ("src", "conntrack/src/lib.rs", false),
            ("bin/*", "bin/src/run.rs", true),
            ("bin/src/run", "bin/src/run.rs", true),
        ] {
            assert_eq!(names(pattern, file), expected, "{pattern} {file}");
        }
    }

    #[test]
    fn stars_match_anything() {
        for (pattern, text, expected) in [
            ("run", "run", true),
            ("run", "runner", false),
            ("run*", "runner", true),
            ("*ner", "runner", true),
            ("r*n*r", "runner", true),
            ("r*x*r", "runner", false),
            ("r?n", "run", true),
            ("?", "", false),
            ("**", "", true),
            ("*r", "runner", true),
            ("*n?", "runner", false),
            ("*un*?r", "runner", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
        // To try all places of all stars would take longer than anybody waits.
        let (many, text) = ("*a".repeat(60), "a".repeat(120));
        assert!(matches(many.as_bytes(), text.as_bytes()));
        assert!(!matches(format!("{many}b").as_bytes(), text.as_bytes()));
    }
}
