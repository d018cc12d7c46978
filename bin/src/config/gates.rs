//! The feature gates of kube-proxy v1.37, and those of later releases whose features there are
//! here.
//!
//! kube-proxy rejects an unknown gate. Here, an unknown gate only causes a warning, because a file
//! often lists gates of other components or of an older release.

use std::collections::BTreeMap;

/// The gate that, if false, keeps `externalIPs` from being programmed.
pub const EXTERNAL_IPS: &str = "AllowServiceExternalIPs";
/// The gate that, if false, keeps node ports off localhost in nftables mode.
pub const LOCALHOST_NODE_PORTS: &str = "KubeProxyNFTablesLocalhostNodePorts";
/// The gate that, if false, forbids ipvs mode.
pub const IPVS: &str = "KubeProxyIPVS";
/// The gate that allows `logging.options`.
pub const LOGGING_ALPHA: &str = "LoggingAlphaOptions";
/// The gate that allows JSON logs.
pub const LOGGING_BETA: &str = "LoggingBetaOptions";
/// The gates that switch all gates of a stage.
const ALL: [(&str, Stage); 2] = [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
    /// Generally available, but can be switched off.
    Stable,
    /// Generally available, and always on.
    Locked,
}

impl Stage {
    fn as_str(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Stable | Self::Locked => "",
        }
    }

    fn default_value(self) -> bool {
        self != Self::Alpha
    }
}

/// The gates that matter to kube-proxy on Linux, and `NFTablesProxyMode`, which old files set.
const KNOWN: &[(&str, Stage)] = &[
    (EXTERNAL_IPS, Stage::Stable),
    ("PreferSameTrafficDistribution", Stage::Locked),
    ("MultiCIDRServiceAllocator", Stage::Locked),
    // Alpha in kube-proxy v1.37, and beta from v1.38 on. Here, `nodePortAddresses` alone decides,
    // unless the gate is switched off.
    (LOCALHOST_NODE_PORTS, Stage::Beta),
    // From kube-proxy v1.37 on, where ipvs mode is deprecated: v1.40 switches the gate off, and
    // v1.43 removes the mode (KEP-5495). Here, the mode stays.
    (IPVS, Stage::Stable),
    ("ComponentFlagz", Stage::Beta),
    ("ComponentStatusz", Stage::Beta),
    ("NativeHistograms", Stage::Alpha),
    ("ContextualLogging", Stage::Beta),
    (LOGGING_ALPHA, Stage::Alpha),
    (LOGGING_BETA, Stage::Beta),
    ("WatchListClient", Stage::Beta),
    ("ClientsAllowCBOR", Stage::Alpha),
    ("ClientsPreferCBOR", Stage::Alpha),
    ("InOrderInformers", Stage::Locked),
    ("InformerResourceVersion", Stage::Stable),
    ("NFTablesProxyMode", Stage::Locked),
];

/// A gate that is locked cannot have its configured value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot set feature gate {0} to false, feature is locked to true")]
pub struct GateError(String);

/// Checks the configured gates, and returns the warnings about them.
pub fn check(gates: &BTreeMap<String, bool>) -> Result<Vec<String>, GateError> {
    let mut warnings = Vec::new();
    for (name, value) in gates {
        match stage(name) {
            Some(Stage::Locked) if !value => return Err(GateError(name.clone())),
            Some(Stage::Stable | Stage::Locked) => warnings.push(format!(
                "setting GA feature gate {name}={value}; it will be removed in a future release"
            )),
            Some(Stage::Alpha | Stage::Beta) => {}
            None if ALL.iter().any(|(all, _)| all == name) => {}
            None => warnings.push(format!("unrecognized feature gate: {name}; it has no effect")),
        }
    }
    Ok(warnings)
}

/// Whether a gate is on: by the configuration of the gate, else of the gate's stage, else by
/// default.
pub fn is_on(gates: &BTreeMap<String, bool>, name: &str) -> bool {
    let Some(stage) = stage(name) else { return false };
    let of_stage = ALL.iter().find(|(_, all)| *all == stage).and_then(|(all, _)| gates.get(*all));
    gates.get(name).or(of_stage).copied().unwrap_or(stage.default_value())
}

/// A gate, as the metric `kubernetes_feature_enabled` reports gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    pub name: &'static str,
    /// The stage as text, empty for a gate that is generally available.
    pub stage: &'static str,
    pub is_on: bool,
}

/// Returns all known gates with their configured values.
pub fn all(gates: &BTreeMap<String, bool>) -> impl Iterator<Item = Gate> {
    let of_stages = ALL.iter().map(|(name, stage)| Gate {
        name,
        stage: stage.as_str(),
        is_on: gates.get(*name).copied().unwrap_or(false),
    });
    let known = KNOWN.iter().map(|(name, stage)| Gate {
        name,
        stage: stage.as_str(),
        is_on: is_on(gates, name),
    });
    of_stages.chain(known)
}

fn stage(name: &str) -> Option<Stage> {
    KNOWN.iter().find(|(known, _)| *known == name).map(|(_, stage)| *stage)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(pairs: &[(&str, bool)]) -> BTreeMap<String, bool> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn a_stage_can_be_switched_at_once() {
        assert!(!is_on(&gates(&[]), LOGGING_ALPHA));
        assert!(is_on(&gates(&[]), LOGGING_BETA));
        assert!(is_on(&gates(&[("AllAlpha", true)]), LOGGING_ALPHA));
        assert!(!is_on(&gates(&[("AllBeta", false)]), LOGGING_BETA));
        assert!(is_on(&gates(&[("AllBeta", false), (LOGGING_BETA, true)]), LOGGING_BETA));
        assert!(is_on(&gates(&[("AllBeta", false)]), EXTERNAL_IPS));
    }
}
