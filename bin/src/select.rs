//! The choice of the mode: the configured mode, or the first mode that this node can run.

use std::{error::Error, sync::Arc};

use switchyard_core::{
    error::ErrorChain,
    proxier::{Backend, Mode, Probed, ProxierError},
};

use crate::backends;

/// The modes to try if `mode` is empty, best first.
const BEST_FIRST: [Mode; 3] = [Mode::NFTABLES, Mode::IPTABLES, Mode::USERSPACE];

/// A chosen mode, and why other modes were not chosen.
#[derive(Debug)]
pub struct Chosen<P = Probed> {
    pub mode: Mode,
    /// The result of the mode's probe.
    pub probed: P,
    /// Why another mode than the configured one was chosen, if so.
    pub warning: Option<String>,
    /// Why this node cannot run better modes that were tried.
    pub passed_over: Vec<ProxierError>,
}

impl<P> Chosen<P> {
    fn just(mode: Mode, probed: P) -> Self {
        Self { mode, probed, warning: None, passed_over: Vec::new() }
    }
}

/// Why no mode could be chosen.
#[derive(Debug, thiserror::Error)]
pub enum NoMode {
    /// This node cannot run the configured mode.
    #[error("{} cannot be used on this node: {}", .0.mode(), reason(.0))]
    Named(ProxierError),
    /// This node can run neither ipvs, which is configured, nor iptables in its place.
    #[error(
        "ipvs cannot be used on this node: {}; nor can iptables in its place: {}",
        reason(.0),
        reason(.1)
    )]
    NorInItsPlace(Box<ProxierError>, Box<ProxierError>),
    #[error("no mode can be used on this node: {}", list(.0))]
    Best(Vec<ProxierError>),
}

fn list(modes: &[ProxierError]) -> String {
    let each: Vec<String> =
        modes.iter().map(|error| format!("{}: {}", error.mode(), reason(error))).collect();
    each.join("; ")
}

/// Returns why this node cannot run a mode, in one line: programs may print several.
pub fn reason(error: &ProxierError) -> String {
    let text = match error.source() {
        Some(cause) if matches!(error, ProxierError::Unusable { .. }) => {
            ErrorChain(cause).to_string()
        }
        _ => ErrorChain(error).to_string(),
    };
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

/// Chooses the named mode, or the best one. `probe` finds out whether this node can run a mode.
///
/// # Errors
/// If this node can run none of the modes in question.
pub fn choose<P>(
    named: Option<Mode>,
    mut probe: impl FnMut(Mode) -> Result<P, ProxierError>,
) -> Result<Chosen<P>, NoMode> {
    if let Some(mode) = named {
        return match probe(mode) {
            Ok(probed) => Ok(Chosen::just(mode, probed)),
            Err(error @ ProxierError::Unusable { is_node: true, .. }) if mode == Mode::IPVS => {
                in_place_of_ipvs(error, probe)
            }
            Err(error) => Err(NoMode::Named(error)),
        };
    }
    let mut passed_over = Vec::new();
    for mode in BEST_FIRST {
        match probe(mode) {
            Ok(probed) => return Ok(Chosen { passed_over, ..Chosen::just(mode, probed) }),
            Err(error) => passed_over.push(error),
        }
    }
    Err(NoMode::Best(passed_over))
}

/// Chooses iptables for a node without ipvs in a cluster whose configuration names ipvs.
fn in_place_of_ipvs<P>(
    error: ProxierError,
    mut probe: impl FnMut(Mode) -> Result<P, ProxierError>,
) -> Result<Chosen<P>, NoMode> {
    match probe(Mode::IPTABLES) {
        Ok(probed) => {
            let why = reason(&error);
            let warning = format!("ipvs cannot be used on this node: {why}; using iptables");
            Ok(Chosen { warning: Some(warning), ..Chosen::just(Mode::IPTABLES, probed) })
        }
        Err(second) => Err(NoMode::NorInItsPlace(Box::new(error), Box::new(second))),
    }
}

/// Finds out whether this node can run a mode, by the mode's backend.
pub fn probe(backends: &[Arc<dyn Backend>], mode: Mode) -> Result<Probed, ProxierError> {
    backends::get(backends, mode)?.probe()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(
        named: Option<Mode>,
        usable: &[Mode],
        kernel_has_ipvs: bool,
    ) -> Result<Chosen<()>, String> {
        choose(named, |mode| match mode {
            mode if usable.contains(&mode) => Ok(()),
            Mode::IPVS if !kernel_has_ipvs => Err(ProxierError::lacking(mode, "no module")),
            _ => Err(ProxierError::unusable(mode, format!("no {mode}"))),
        })
        .map_err(|error| error.to_string())
    }

    #[test]
    fn a_reason_is_one_line() {
        let several = "iptables fails:\n  table does not exist\n\nmodprobe?\n";
        let error = ProxierError::lacking(Mode::IPTABLES, several);
        assert_eq!(reason(&error), "iptables fails:; table does not exist; modprobe?");
    }

    #[test]
    fn iptables_stands_in_for_ipvs_without_modules() {
        let found = chosen(Some(Mode::IPVS), &[Mode::IPTABLES], false).unwrap();
        assert_eq!(found.mode, Mode::IPTABLES);
        assert_eq!(
            found.warning.unwrap(),
            "ipvs cannot be used on this node: no module; using iptables"
        );
        assert_eq!(
            chosen(Some(Mode::IPVS), &[], false).unwrap_err(),
            "ipvs cannot be used on this node: no module; \
             nor can iptables in its place: no iptables"
        );
        assert_eq!(
            chosen(Some(Mode::IPVS), &[Mode::IPTABLES], true).unwrap_err(),
            "ipvs cannot be used on this node: no ipvs",
            "iptables replaces ipvs only if the node lacks the modules"
        );
    }
}
