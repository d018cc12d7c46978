//! The release of Kubernetes that this program follows, and the platform of this build.

/// The release of Kubernetes whose kube-proxy is followed.
pub const KUBERNETES: &str = "v1.37.0";
/// The minor release before [`KUBERNETES`], and that before the oldest kube-proxy that this program
/// takes the place of with its configuration as it is.
pub const PREVIOUS_MINORS: [&str; 2] = ["1.36", "1.35"];
/// The version of this program.
pub const OURS: &str = env!("CARGO_PKG_VERSION");

/// Checks that a version is [`KUBERNETES`], maybe with a suffix. The error describes what the
/// version must be.
pub fn same_release(text: &str) -> Result<(), String> {
    match text.strip_prefix(KUBERNETES) {
        Some(suffix) if suffix.is_empty() || suffix.starts_with(['-', '+']) => Ok(()),
        _ => Err(format!("must be {KUBERNETES} with a suffix")),
    }
}

/// Returns the major and the minor number of a release, such as `v1.36.2`.
pub fn major_minor(release: &str) -> (&str, &str) {
    let mut numbers = release.trim_start_matches('v').split('.');
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
}

/// Returns Go's name of the processor's architecture.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Returns Go's name of the platform, such as `linux/amd64`.
pub fn platform() -> String {
    format!("linux/{}", architecture())
}
