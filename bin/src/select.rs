//! The choice of the mode: the configured mode, or the first mode that this node can run.

use std::sync::Arc;

use switchyard_core::proxier::{Backend, Mode, Support, Unusable};

use crate::backends;

/// The modes to try if `mode` is empty, best first.
const BEST_FIRST: [Mode; 3] = [Mode::NFTABLES, Mode::IPTABLES, Mode::USERSPACE];

/// A chosen mode, and why other modes were not chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The mode.
    pub mode: Mode,
    /// What the node can do for the mode.
    pub support: Support,
    /// Why another mode than the configured one was chosen, if so.
    pub warning: Option<String>,
    /// Better modes that were tried, and why this node cannot run them.
    pub passed_over: Vec<(Mode, Unusable)>,
}

impl Chosen {
    fn just(mode: Mode, support: Support) -> Self {
        Self { mode, support, warning: None, passed_over: Vec::new() }
    }
}

/// Why no mode could be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMode {
    /// This node cannot run the configured mode.
    #[error("{0} cannot be used on this node: {1}")]
    Named(Mode, Unusable),
    /// This node can run neither ipvs, which is configured, nor iptables in its place.
    #[error("ipvs cannot be used on this node: {0}; nor can iptables in its place: {1}")]
    NorInItsPlace(Unusable, Unusable),
    /// This node can run no mode.
    #[error("no mode can be used on this node: {}", list(.0))]
    Best(Vec<(Mode, Unusable)>),
}

fn list(modes: &[(Mode, Unusable)]) -> String {
    let each: Vec<String> =
        modes.iter().map(|(mode, unusable)| format!("{mode}: {unusable}")).collect();
    each.join("; ")
}

/// Chooses the named mode, or the best one. `probe` finds out whether this node can run a mode.
///
/// # Errors
/// If this node can run none of the modes in question.
pub fn choose(
    named: Option<Mode>,
    mut probe: impl FnMut(Mode) -> Result<Support, Unusable>,
) -> Result<Chosen, NoMode> {
    match named {
        Some(Mode::IPVS) => match probe(Mode::IPVS) {
            Ok(support) => Ok(Chosen::just(Mode::IPVS, support)),
            Err(unusable @ Unusable::Node(_)) => in_place_of_ipvs(unusable, probe),
            Err(unusable) => Err(NoMode::Named(Mode::IPVS, unusable)),
        },
        Some(mode) => match probe(mode) {
            Ok(support) => Ok(Chosen::just(mode, support)),
            Err(unusable) => Err(NoMode::Named(mode, unusable)),
        },
        None => {
            let mut passed_over = Vec::new();
            for mode in BEST_FIRST {
                match probe(mode) {
                    Ok(support) => {
                        return Ok(Chosen { passed_over, ..Chosen::just(mode, support) });
                    }
                    Err(unusable) => passed_over.push((mode, unusable)),
                }
            }
            Err(NoMode::Best(passed_over))
        }
    }
}

/// Chooses iptables for a node without ipvs in a cluster whose configuration names ipvs.
fn in_place_of_ipvs(
    unusable: Unusable,
    mut probe: impl FnMut(Mode) -> Result<Support, Unusable>,
) -> Result<Chosen, NoMode> {
    match probe(Mode::IPTABLES) {
        Ok(support) => {
            let warning = format!("ipvs cannot be used on this node: {unusable}; using iptables");
            Ok(Chosen { warning: Some(warning), ..Chosen::just(Mode::IPTABLES, support) })
        }
        Err(second) => Err(NoMode::NorInItsPlace(unusable, second)),
    }
}

/// Finds out whether this node can run a mode, by the mode's backend.
pub fn probe(backends: &[Arc<dyn Backend>], mode: Mode) -> Result<Support, Unusable> {
    match backends::get(backends, mode) {
        Some(backend) => backend.probe(),
        None => Err(Unusable::Backend(format!("there is no {mode} backend"))),
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::model::PerFamily;

    use super::*;
    use crate::backends::MODES;

    const BOTH: Support = Support::new(PerFamily { v4: true, v6: true });

    fn chosen(
        named: Option<Mode>,
        usable: &[Mode],
        kernel_has_ipvs: bool,
    ) -> Result<Chosen, String> {
        choose(named, |mode| match mode {
            mode if usable.contains(&mode) => Ok(BOTH),
            Mode::IPVS if !kernel_has_ipvs => Err(Unusable::Node("no module".into())),
            _ => Err(Unusable::Backend(format!("no {mode}"))),
        })
        .map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_mode_is_the_first_that_works() {
        let mode = |usable| chosen(None, usable, true).unwrap().mode;
        assert_eq!(mode(&MODES), Mode::NFTABLES);
        assert_eq!(mode(&[Mode::IPTABLES, Mode::USERSPACE]), Mode::IPTABLES);
        let last = chosen(None, &[Mode::IPVS, Mode::USERSPACE], true).unwrap();
        assert_eq!(last.mode, Mode::USERSPACE);
        let passed_over: Vec<Mode> = last.passed_over.iter().map(|(mode, _)| *mode).collect();
        assert_eq!(passed_over, [Mode::NFTABLES, Mode::IPTABLES]);
        assert_eq!(
            chosen(None, &[Mode::IPVS], true).unwrap_err(),
            "no mode can be used on this node: \
             nftables: no nftables; iptables: no iptables; userspace: no userspace"
        );
    }

    #[test]
    fn a_mode_that_is_named_is_used_or_fails() {
        for mode in MODES {
            assert_eq!(chosen(Some(mode), &[mode], true).unwrap(), Chosen::just(mode, BOTH));
        }
        assert_eq!(
            chosen(Some(Mode::NFTABLES), &[Mode::IPTABLES], true).unwrap_err(),
            "nftables cannot be used on this node: no nftables"
        );
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
