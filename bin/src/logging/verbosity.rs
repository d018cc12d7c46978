//! `-v` and `--vmodule`: what is let through.

use tracing::{Level, Metadata, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::layer::{Context, Filter};

use super::fields::verbosity;
use crate::config::settings::LogSettings;

/// The crates of this workspace, whose messages follow `-v`.
const OURS: [&str; 9] = [
    "switchyard",
    "switchyard_conntrack",
    "switchyard_netlink",
    "proxy_core",
    "backend_nft",
    "backend_iptables",
    "backend_ipvs",
    "backend_userspace",
    "netlink",
];

/// Lets through what the settings say.
pub(super) struct Verbosity {
    usual: u32,
    files: Vec<(String, u32)>,
}

impl Verbosity {
    pub(super) fn new(settings: &LogSettings) -> Self {
        Self { usual: settings.verbosity, files: settings.vmodule.clone() }
    }

    /// Changes what `-v` says.
    pub(super) fn set(&mut self, verbosity: u32) {
        self.usual = verbosity;
    }

    /// Whether an event or a span of this kind is let through.
    fn lets(&self, metadata: &Metadata<'_>) -> bool {
        if !is_ours(metadata.target()) {
            return *metadata.level() <= theirs(self.usual);
        }
        // Only what informs can be too much.
        if *metadata.level() <= Level::WARN {
            return true;
        }
        let verbosity = verbosity(metadata);
        // As with klog, a file can say more than the rest, and not less.
        verbosity <= self.usual || self.of_file(metadata).is_some_and(|most| verbosity <= most)
    }

    /// What `--vmodule` says of the file: its first pattern that fits.
    fn of_file(&self, metadata: &Metadata<'_>) -> Option<u32> {
        let file = metadata.file().filter(|_| !self.files.is_empty())?;
        self.files.iter().find(|(pattern, _)| names(pattern, file)).map(|(_, most)| *most)
    }
}

impl<S: Subscriber> Filter<S> for Verbosity {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.lets(metadata)
    }

    fn callsite_enabled(
        &self,
        metadata: &'static Metadata<'static>,
    ) -> tracing::subscriber::Interest {
        match self.lets(metadata) {
            true => tracing::subscriber::Interest::always(),
            false => tracing::subscriber::Interest::never(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let most = self.files.iter().map(|(_, most)| *most).chain([self.usual]).max();
        // Messages that name their verbosity have the level that it would have.
        let ours = match most.unwrap_or_default() {
            0..=1 => LevelFilter::INFO,
            2..=3 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        };
        Some(ours.max(theirs(self.usual)))
    }
}

fn is_ours(target: &str) -> bool {
    let name = target.split("::").next().unwrap_or(target);
    OURS.contains(&name)
}

/// Libraries are quiet until much more is asked for.
fn theirs(verbosity: u32) -> LevelFilter {
    match verbosity {
        0..=5 => LevelFilter::WARN,
        6..=8 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

/// Whether a pattern names a source file: the name without its ending, or the whole path if the
/// pattern has a slash. A `mod.rs`, `lib.rs` or `main.rs` goes by the name of its folder, too, or
/// of its crate: its own says little.
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

/// Whether `text` is of the form of `pattern`, where `*` stands for any text and `?` for one byte.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // The last star, and what is left of the text if it stands for one byte more.
    let mut retry: Option<(&[u8], &[u8])> = None;
    let (mut pattern, mut text) = (pattern, text);
    loop {
        match (pattern, text) {
            ([b'*', rest @ ..], _) => {
                retry = Some((rest, text));
                pattern = rest;
                continue;
            }
            ([p, pattern_rest @ ..], [t, text_rest @ ..]) if *p == b'?' || p == t => {
                (pattern, text) = (pattern_rest, text_rest);
                continue;
            }
            ([], []) => return true,
            _ => {}
        }
        match retry {
            Some((rest, [_, later @ ..])) => {
                retry = Some((rest, later));
                (pattern, text) = (rest, later);
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_names() {
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
    fn stars_stand_for_anything() {
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
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
