//! The backends that tests run with.

use std::{
    env,
    path::{Path, PathBuf},
};

use test_netns::nft_trixie;

use crate::{
    capability,
    error::{Result, RigError},
    expect::Seen,
    kube_proxy,
};

/// The variable with the list of backends.
const BACKENDS_VARIABLE: &str = "SWITCHYARD_BACKENDS";

/// The nftables backend by `--nft-transport=json`, with the nft that this transport needs.
const BY_JSON: &str = "nftables-json";

/// The mode that forwards traffic itself, with the best capture mode of the node: rules of
/// nftables.
pub const USERSPACE: &str = "userspace";

/// The same mode, with rules of iptables.
pub const USERSPACE_IPTABLES: &str = "userspace-iptables";

/// The same mode without a packet filter: the addresses of Services are the node's.
const USERSPACE_ADDRESSES: &str = "userspace-addresses";

/// The argument of the latter.
const WITHOUT_RULES: &str = "--userspace-capture=addresses";

/// The backends, by their `--proxy-mode`; and those that do it by other means, with names of their
/// own.
pub const BACKENDS: [&str; 7] =
    ["nftables", BY_JSON, "iptables", IPVS, USERSPACE, USERSPACE_IPTABLES, USERSPACE_ADDRESSES];

/// Genuine kube-proxy in nftables mode.
pub const KUBE_PROXY_NFTABLES: &str = "kube-proxy-nftables";

/// Genuine kube-proxy in iptables mode.
pub const KUBE_PROXY_IPTABLES: &str = "kube-proxy-iptables";

/// The proxies to compare with, which run where [`kube_proxy::VARIABLE`] names a program.
pub const REFERENCES: [&str; 2] = [KUBE_PROXY_NFTABLES, KUBE_PROXY_IPTABLES];

/// The backends that exist and that every node of the tests can run.
const EVERYWHERE: [&str; 4] = ["nftables", BY_JSON, "iptables", USERSPACE];

/// The mode that needs IPVS, which many kernels lack.
const IPVS: &str = "ipvs";

/// Whether the environment lists the backends to test with.
pub fn are_chosen() -> bool {
    env::var_os(BACKENDS_VARIABLE).is_some()
}

/// The backends to test with: the comma-separated list in the environment's `SWITCHYARD_BACKENDS`,
/// else all backends that are built and that this kernel can run.
///
/// # Errors
///
/// If the variable names no backend, an unknown one, or one that this kernel cannot run.
pub fn selected() -> Result<Vec<&'static str>> {
    let Some(list) = env::var_os(BACKENDS_VARIABLE) else {
        // The module of a kernel that is not asked for IPVS is not loaded.
        return Ok(EVERYWHERE.into_iter().chain(capability::has_ipvs().then_some(IPVS)).collect());
    };
    let backends = parse(&list.to_string_lossy())?;
    if backends.contains(&IPVS) && !capability::load_ipvs() {
        return Err(RigError::Setup(format!(
            "{BACKENDS_VARIABLE} names ipvs, but this kernel has no IPVS (module ip_vs); make \
             test-ipvs runs the cases on a kernel that has"
        )));
    }
    match backends.iter().any(|name| is_kube_proxy(name)) && kube_proxy::find()?.is_none() {
        true => Err(no_kube_proxy()),
        false => Ok(backends),
    }
}

/// The backends to run the packet cases with: those of [`selected`], and genuine kube-proxy's where
/// its program is named and no list of backends is.
///
/// # Errors
///
/// As [`selected`]; or if the variable for kube-proxy names no file.
pub fn selected_and_references() -> Result<Vec<&'static str>> {
    let mut backends = selected()?;
    if env::var_os(BACKENDS_VARIABLE).is_none() && kube_proxy::find()?.is_some() {
        backends.extend(REFERENCES);
    }
    Ok(backends)
}

/// The error of a list that names kube-proxy where no program of it is named.
pub(crate) fn no_kube_proxy() -> RigError {
    RigError::Setup(format!("{BACKENDS_VARIABLE} names kube-proxy, and KUBE_PROXY no program"))
}

/// Whether a backend is genuine kube-proxy's.
pub fn is_kube_proxy(backend: &str) -> bool {
    REFERENCES.contains(&backend)
}

/// Whether the cases know this proxy: a backend, or kube-proxy.
pub fn is_known(name: &str) -> bool {
    BACKENDS.contains(&name) || is_kube_proxy(name)
}

/// Reads a comma-separated list of backends.
///
/// # Errors
///
/// If there is no such backend.
pub fn parse(list: &str) -> Result<Vec<&'static str>> {
    let find = |word: &str| {
        let known = BACKENDS.into_iter().chain(REFERENCES).find(|name| *name == word.trim());
        known.ok_or_else(|| RigError::Setup(format!("there is no backend {word:?}")))
    };
    list.split(',').map(find).collect()
}

/// The `--proxy-mode` of a backend.
pub fn mode(backend: &str) -> &str {
    match backend {
        BY_JSON | KUBE_PROXY_NFTABLES => "nftables",
        KUBE_PROXY_IPTABLES => "iptables",
        USERSPACE_IPTABLES | USERSPACE_ADDRESSES => USERSPACE,
        mode => mode,
    }
}

/// The arguments that choose a backend besides its mode.
pub fn arguments(backend: &str) -> &'static [&'static str] {
    match backend {
        BY_JSON => &["--nft-transport=json"],
        USERSPACE_IPTABLES => &["--userspace-capture=iptables"],
        USERSPACE_ADDRESSES => &[WITHOUT_RULES],
        _ => &[],
    }
}

/// The clients that servers see with a proxy of this mode and with these arguments.
pub(crate) fn seen(mode: &str, arguments: &[String]) -> Seen {
    match mode {
        USERSPACE if arguments.iter().any(|argument| argument == WITHOUT_RULES) => Seen::Node,
        USERSPACE => Seen::Kept,
        _ => Seen::Clients,
    }
}

/// The clients that servers see with a backend.
pub(crate) fn seen_with(backend: &str) -> Seen {
    let arguments: Vec<String> = arguments(backend).iter().map(|&text| text.to_owned()).collect();
    seen(mode(backend), &arguments)
}

/// The directory of the programs that the node has with this backend, before those of the machine.
/// `None` if the backend does with the machine's.
///
/// # Errors
///
/// If they cannot be had, which [`not_runnable`] tells before.
pub(crate) fn programs(backend: &str) -> Result<Option<PathBuf>> {
    match backend {
        BY_JSON => newer_nft().map(Some).ok_or_else(|| {
            RigError::Setup("there is no nft 1.1.3, which the JSON transport needs".to_owned())
        }),
        _ => Ok(None),
    }
}

/// The reason for which a backend cannot be run on this machine, if any. Fetches what the backend
/// needs, once.
pub fn not_runnable(backend: &str) -> Option<&'static str> {
    (backend == BY_JSON && newer_nft().is_none()).then_some("nft 1.1.3 cannot be fetched")
}

/// The directory of nft 1.1.3, which is fetched into the directory that cargo has for tests' files:
/// tests are built into `target/debug/deps`, and their files are in `target/tmp`.
fn newer_nft() -> Option<PathBuf> {
    nft_trixie(&files()?)?.parent().map(Path::to_owned)
}

fn files() -> Option<PathBuf> {
    let own = env::current_exe().ok()?;
    Some(own.ancestors().nth(3)?.join("tmp"))
}
