//! Which mode to run in: the one that is configured, or the first that this node can run.

mod nftables;

use std::{fmt, path::Path, process::Command};

use proxy_core::proxier::ProxierError;

use crate::{
    backend,
    config::settings::{BackendSettings, Mode},
};

/// The modes that an empty `mode` stands for, best first.
const BEST_FIRST: [Mode; 3] = [Mode::Nftables, Mode::Iptables, Mode::Userspace];
/// Why a mode cannot be run here, in a few words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// The kernel or the node lacks something that every proxy would need for this mode.
    OnNode(String),
    /// Only we cannot.
    Otherwise(String),
}

impl fmt::Display for Lacking {
    /// In one line: programs print more.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::OnNode(text) | Self::Otherwise(text)) = self;
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        f.write_str(lines.next().unwrap_or_default())?;
        lines.try_for_each(|line| write!(f, "; {line}"))
    }
}

/// A mode, and why it is not another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The mode.
    pub mode: Mode,
    /// Why the configured mode is not used, if it is not.
    pub warning: Option<String>,
    /// Better modes that were tried, and what they lack.
    pub passed_over: Vec<(Mode, Lacking)>,
}

impl Chosen {
    fn just(mode: Mode) -> Self {
        Self { mode, warning: None, passed_over: Vec::new() }
    }
}

/// No mode can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMode {
    /// Not the one that is configured.
    #[error("{0} cannot be used on this node: {1}")]
    Named(Mode, Lacking),
    /// Not ipvs, nor what stands in for it.
    #[error("ipvs cannot be used on this node: {0}; nor can iptables in its place: {1}")]
    NorInItsPlace(Lacking, Lacking),
    /// None at all.
    #[error("no mode can be used on this node: {}", list(.0))]
    Best(Vec<(Mode, Lacking)>),
}

fn list(modes: &[(Mode, Lacking)]) -> String {
    let each: Vec<String> =
        modes.iter().map(|(mode, lacking)| format!("{mode}: {lacking}")).collect();
    each.join("; ")
}

/// Chooses, by asking `probe` whether a mode can be run.
pub fn choose(
    named: Option<Mode>,
    mut probe: impl FnMut(Mode) -> Result<(), Lacking>,
) -> Result<Chosen, NoMode> {
    match named {
        Some(Mode::Ipvs) => match probe(Mode::Ipvs) {
            Ok(()) => Ok(Chosen::just(Mode::Ipvs)),
            Err(lacking @ Lacking::OnNode(_)) => in_place_of_ipvs(lacking, probe),
            Err(lacking) => Err(NoMode::Named(Mode::Ipvs, lacking)),
        },
        Some(mode) => match probe(mode) {
            Ok(()) => Ok(Chosen::just(mode)),
            Err(lacking) => Err(NoMode::Named(mode, lacking)),
        },
        None => {
            let mut passed_over = Vec::new();
            for mode in BEST_FIRST {
                match probe(mode) {
                    Ok(()) => return Ok(Chosen { mode, warning: None, passed_over }),
                    Err(lacking) => passed_over.push((mode, lacking)),
                }
            }
            Err(NoMode::Best(passed_over))
        }
    }
}

/// A cluster whose configuration says ipvs has nodes that cannot do it: they have iptables.
fn in_place_of_ipvs(
    lacking: Lacking,
    mut probe: impl FnMut(Mode) -> Result<(), Lacking>,
) -> Result<Chosen, NoMode> {
    match probe(Mode::Iptables) {
        Ok(()) => {
            let warning = format!("ipvs cannot be used on this node: {lacking}; using iptables");
            Ok(Chosen { warning: Some(warning), ..Chosen::just(Mode::Iptables) })
        }
        Err(second) => Err(NoMode::NorInItsPlace(lacking, second)),
    }
}

/// Whether this node can run a mode. Changes nothing, except that kernel modules may be loaded.
pub fn probe(mode: Mode, settings: &BackendSettings) -> Result<(), Lacking> {
    match mode {
        Mode::Nftables => nftables::probe(backend::transport(settings)),
        Mode::Iptables => {
            let families = backend_iptables::probe(&backend::iptables_config(settings));
            families.map(drop).map_err(otherwise)
        }
        Mode::Ipvs => {
            ipvs_in_kernel()?;
            backend_ipvs::probe().map_err(otherwise)
        }
        Mode::Userspace => backend_userspace::probe().map_err(otherwise),
    }
}

fn otherwise(error: ProxierError) -> Lacking {
    Lacking::Otherwise(match error {
        ProxierError::Unsupported { reason, .. } => reason,
        error => crate::error_chain(&error),
    })
}

/// Whether the kernel has IPVS, if need be after loading its module.
fn ipvs_in_kernel() -> Result<(), Lacking> {
    let there = || Path::new("/proc/net/ip_vs").exists();
    if there() {
        return Ok(());
    }
    // What it says is of no use: the file tells.
    let _ = Command::new("modprobe").args(["-q", "ip_vs"]).output();
    if there() {
        return Ok(());
    }
    Err(Lacking::OnNode("the kernel module ip_vs is missing".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(
        named: Option<Mode>,
        usable: &[Mode],
        kernel_has_ipvs: bool,
    ) -> Result<Chosen, String> {
        choose(named, |mode| match mode {
            mode if usable.contains(&mode) => Ok(()),
            Mode::Ipvs if !kernel_has_ipvs => Err(Lacking::OnNode("no module".into())),
            _ => Err(Lacking::Otherwise(format!("no {mode}"))),
        })
        .map_err(|error| error.to_string())
    }

    #[test]
    fn the_first_that_works_is_the_best() {
        let mode = |usable| chosen(None, usable, true).unwrap().mode;
        assert_eq!(mode(&Mode::ALL), Mode::Nftables);
        assert_eq!(mode(&[Mode::Iptables, Mode::Userspace]), Mode::Iptables);
        let last = chosen(None, &[Mode::Ipvs, Mode::Userspace], true).unwrap();
        assert_eq!(last.mode, Mode::Userspace);
        let passed_over: Vec<Mode> = last.passed_over.iter().map(|(mode, _)| *mode).collect();
        assert_eq!(passed_over, [Mode::Nftables, Mode::Iptables]);
        assert_eq!(
            chosen(None, &[Mode::Ipvs], true).unwrap_err(),
            "no mode can be used on this node: \
             nftables: no nftables; iptables: no iptables; userspace: no userspace"
        );
    }

    #[test]
    fn a_mode_that_is_named_is_used_or_fails() {
        for mode in Mode::ALL {
            assert_eq!(chosen(Some(mode), &[mode], true).unwrap(), Chosen::just(mode));
        }
        assert_eq!(
            chosen(Some(Mode::Nftables), &[Mode::Iptables], true).unwrap_err(),
            "nftables cannot be used on this node: no nftables"
        );
    }

    #[test]
    fn iptables_stands_in_for_ipvs_without_modules() {
        let found = chosen(Some(Mode::Ipvs), &[Mode::Iptables], false).unwrap();
        assert_eq!(found.mode, Mode::Iptables);
        assert_eq!(
            found.warning.unwrap(),
            "ipvs cannot be used on this node: no module; using iptables"
        );
        assert_eq!(
            chosen(Some(Mode::Ipvs), &[], false).unwrap_err(),
            "ipvs cannot be used on this node: no module; \
             nor can iptables in its place: no iptables"
        );
        assert_eq!(
            chosen(Some(Mode::Ipvs), &[Mode::Iptables], true).unwrap_err(),
            "ipvs cannot be used on this node: no ipvs",
            "only for want of the modules"
        );
    }

    #[test]
    fn what_is_lacking_is_one_line() {
        let lacking =
            Lacking::OnNode("iptables fails:\n  table does not exist\n\nmodprobe?\n".into());
        assert_eq!(lacking.to_string(), "iptables fails:; table does not exist; modprobe?");
        assert_eq!(Lacking::Otherwise("not built".into()).to_string(), "not built");
    }
}
