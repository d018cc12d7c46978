//! `--version`: what is said, and to whom.

use crate::{
    cli::CalledAs,
    flags::{Flags, parse::UsageError},
};

/// The release of Kubernetes whose kube-proxy is followed.
pub const KUBERNETES: &str = "v1.36.2";
/// Its minor version, and the one before it.
pub const PREVIOUS_MINOR: &str = "1.35";
/// The version of this program.
pub const OURS: &str = env!("CARGO_PKG_VERSION");

/// What `--version` makes the program print; nothing if it should go on.
pub fn answer(flags: &Flags, called_as: CalledAs) -> Result<Option<String>, UsageError> {
    let text = match flags.written("version") {
        None => return Ok(None),
        Some(text) if text.starts_with('v') => return same_version(text).map(|()| None),
        Some("raw") => raw(),
        // However it was spelt.
        Some(_) if flags.text("version") != Some("true") => return Ok(None),
        Some(_) if called_as == CalledAs::KubeProxy => format!("Kubernetes {KUBERNETES}"),
        Some(_) => format!("switchyard {OURS}"),
    };
    Ok(Some(text))
}

/// A version may be given another suffix, and nothing else.
fn same_version(text: &str) -> Result<(), UsageError> {
    match text.strip_prefix(KUBERNETES) {
        Some(suffix) if suffix.is_empty() || suffix.starts_with(['-', '+']) => Ok(()),
        _ => Err(UsageError::BadValue {
            name: "--version".into(),
            text: text.into(),
            why: format!("must be {KUBERNETES} with a suffix"),
        }),
    }
}

/// In the syntax of Go, which is what kube-proxy prints.
fn raw() -> String {
    let mut numbers = KUBERNETES.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    format!(
        "version.Info{{Major:\"{major}\", Minor:\"{minor}\", GitVersion:\"{KUBERNETES}\", \
         GitCommit:\"\", GitTreeState:\"\", BuildDate:\"\", GoVersion:\"\", \
         Compiler:\"rustc\", Platform:\"linux/{}\", Switchyard:\"{OURS}\"}}",
        match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }
    )
}

/// The first two numbers of [`KUBERNETES`].
pub fn major_minor() -> (&'static str, &'static str) {
    let mut numbers = KUBERNETES.trim_start_matches('v').split('.');
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
}

/// The name that Kubernetes has for the processor.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
