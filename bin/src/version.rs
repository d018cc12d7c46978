//! `--version`: what is said, and to whom.

use std::sync::OnceLock;

use crate::{
    cli::CalledAs,
    flags::{Flags, Precedence},
};

/// The release of Kubernetes whose kube-proxy is followed.
pub const KUBERNETES: &str = "v1.36.2";
/// Its minor version, and the one before it.
pub const PREVIOUS_MINOR: &str = "1.35";
/// The version of this program.
pub const OURS: &str = env!("CARGO_PKG_VERSION");

/// What `--version` makes the program print; nothing if it should go on.
pub fn answer(flags: &Flags, called_as: CalledAs) -> Option<String> {
    // The value is `true` however that was spelt.
    match flags.text("version")? {
        "raw" => Some(raw()),
        "true" if called_as == CalledAs::KubeProxy => Some(format!("Kubernetes {KUBERNETES}")),
        "true" => Some(format!("switchyard {OURS}")),
        _ => None,
    }
}

/// The release that this process reports in place of [`KUBERNETES`].
static REPORTED: OnceLock<String> = OnceLock::new();

/// Has this process report the release that `--version` names, if it names one. Only the program
/// itself may call it, once.
pub fn report(flags: &Flags) {
    if let Some(given) = flags.text("version").filter(|text| text.starts_with('v')) {
        // It was not set before.
        let _ = REPORTED.set(given.to_owned());
    }
}

/// The release of Kubernetes to report: the one that is followed, maybe with a suffix.
pub fn reported() -> &'static str {
    REPORTED.get().map_or(KUBERNETES, String::as_str)
}

/// Whether a version differs from ours by a suffix at most; if not, what it must be.
pub fn same_release(text: &str) -> Result<(), String> {
    match text.strip_prefix(KUBERNETES) {
        Some(suffix) if suffix.is_empty() || suffix.starts_with(['-', '+']) => Ok(()),
        _ => Err(format!("must be {KUBERNETES} with a suffix")),
    }
}

/// Who asks the API server, in the form of all parts of Kubernetes: what groups requests by it
/// takes what is before the slash.
pub fn user_agent(precedence: Precedence) -> String {
    let (platform, release) = (platform(), reported());
    match precedence {
        // We were called by its name.
        Precedence::File => format!("kube-proxy/{release} ({platform}) switchyard/{OURS}"),
        Precedence::Flags => format!("switchyard/{OURS} ({platform}) kubernetes/{release}"),
    }
}

/// The platform, as Go names it.
pub fn platform() -> String {
    format!("linux/{}", architecture())
}

/// In the syntax of Go, which is what kube-proxy prints.
fn raw() -> String {
    let (major, minor) = major_minor();
    format!(
        "version.Info{{Major:\"{major}\", Minor:\"{minor}\", GitVersion:\"{KUBERNETES}\", \
         GitCommit:\"\", GitTreeState:\"\", BuildDate:\"\", GoVersion:\"\", \
         Compiler:\"rustc\", Platform:\"{}\", Switchyard:\"{OURS}\"}}",
        platform()
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
