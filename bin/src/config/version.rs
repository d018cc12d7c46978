//! The text of `--version`, and the release of Kubernetes that the program reports.

use crate::config::{
    flags::{CalledAs, Flags, Precedence},
    release::{KUBERNETES, OURS, major_minor, platform},
};

/// Returns the text that `--version` prints, or `None` if the program is to run.
pub fn answer(flags: &Flags, called_as: CalledAs) -> Option<String> {
    // The parser has normalized every spelling of `true`.
    match flags.text("version")? {
        "raw" => Some(raw()),
        "true" if called_as == CalledAs::KubeProxy => Some(format!("Kubernetes {KUBERNETES}")),
        "true" => Some(format!("switchyard {OURS}")),
        _ => None,
    }
}

/// The release of Kubernetes to report to the API server, and in metrics until the API server's is
/// known: the release that `--version` names, else [`KUBERNETES`].
pub fn reported(flags: &Flags) -> &str {
    flags.text("version").filter(|text| text.starts_with('v')).unwrap_or(KUBERNETES)
}

/// The user agent of requests to the API server, in the form of Kubernetes' components. Tools that
/// group requests by user agent use the part before the slash. `release` is the release of
/// Kubernetes to name, see [`reported`].
pub fn user_agent(precedence: Precedence, release: &str) -> String {
    let platform = platform();
    match precedence {
        // The program was called `kube-proxy`.
        Precedence::File => format!("kube-proxy/{release} ({platform}) switchyard/{OURS}"),
        Precedence::Flags => format!("switchyard/{OURS} ({platform}) kubernetes/{release}"),
    }
}

/// Returns the details of the version, in the syntax of Go, as kube-proxy prints them.
fn raw() -> String {
    let (major, minor) = major_minor(KUBERNETES);
    format!(
        "version.Info{{Major:\"{major}\", Minor:\"{minor}\", GitVersion:\"{KUBERNETES}\", \
         GitCommit:\"\", GitTreeState:\"\", BuildDate:\"\", GoVersion:\"\", \
         Compiler:\"rustc\", Platform:\"{}\", Switchyard:\"{OURS}\"}}",
        platform()
    )
}
