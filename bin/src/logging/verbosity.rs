//! `-v` and `--vmodule`: what is let through.

use tracing::{Metadata, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    filter::Targets,
    layer::{Context, Filter},
};

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
    usual: Targets,
    files: Vec<(String, LevelFilter)>,
    most: LevelFilter,
}

impl Verbosity {
    pub(super) fn new(settings: &LogSettings) -> Self {
        let files: Vec<_> = settings
            .vmodule
            .iter()
            .map(|(pattern, verbosity)| (pattern.clone(), ours(*verbosity)))
            .collect();
        let mut new = Self { usual: Targets::new(), files, most: LevelFilter::TRACE };
        new.set(settings.verbosity);
        new
    }

    /// Changes what `-v` says.
    pub(super) fn set(&mut self, verbosity: u32) {
        self.usual = targets(verbosity);
        let levels = self.files.iter().map(|(_, level)| *level);
        let most = levels.chain([ours(verbosity), theirs(verbosity)]).max();
        self.most = most.unwrap_or(LevelFilter::TRACE);
    }

    /// Whether an event or a span of this kind is let through.
    fn lets(&self, metadata: &Metadata<'_>) -> bool {
        let usual = || self.usual.would_enable(metadata.target(), metadata.level());
        let Some(file) = metadata.file().filter(|_| !self.files.is_empty()) else {
            return usual();
        };
        match self.files.iter().find(|(pattern, _)| names(pattern, file)) {
            Some((_, level)) => metadata.level() <= level,
            None => usual(),
        }
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
        Some(self.most)
    }
}

/// Our levels are klog's verbosities: informational messages are 0, debugging messages 2 and
/// traces 4.
fn ours(verbosity: u32) -> LevelFilter {
    match verbosity {
        0..=1 => LevelFilter::INFO,
        2..=3 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

/// Libraries are quiet until much more is asked for.
fn theirs(verbosity: u32) -> LevelFilter {
    match verbosity {
        0..=5 => LevelFilter::WARN,
        6..=8 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

fn targets(verbosity: u32) -> Targets {
    let base = Targets::new().with_default(theirs(verbosity));
    OURS.iter().fold(base, |filter, name| filter.with_target(*name, ours(verbosity)))
}

/// Whether a pattern names a source file: the name without its ending, or the whole path if the
/// pattern has a slash.
fn names(pattern: &str, file: &str) -> bool {
    let file = file.strip_suffix(".rs").unwrap_or(file);
    let name = if pattern.contains('/') { file } else { file.rsplit('/').next().unwrap_or(file) };
    matches(pattern.as_bytes(), name.as_bytes())
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
