//! The metrics that every Kubernetes component has.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use prometheus::IntGaugeVec;

use super::maker::Maker;
use crate::config::{gates, release};

/// `kubernetes_build_info`
pub struct BuildMetric {
    info: IntGaugeVec,
    release: Mutex<String>,
}

impl BuildMetric {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        let info = make.gauges(
            "kubernetes_build_info",
            "[BETA] A metric with a constant '1' value labeled by the release of Kubernetes of the \
             cluster, and by how this program was built",
            &[
                "major",
                "minor",
                "git_version",
                "git_commit",
                "git_tree_state",
                "build_date",
                "go_version",
                "compiler",
                "platform",
            ],
        )?;
        Ok(Self { info, release: Mutex::default() })
    }

    /// Sets the release, such as `v1.36.2`.
    pub fn set(&self, release: &str) {
        let mut before = self.release.lock().unwrap_or_else(PoisonError::into_inner);
        if *before == release {
            return;
        }
        let platform = release::platform();
        let labels = |release| {
            let (major, minor) = release::major_minor(release);
            [major, minor, release, "", "", "", "", "rustc", &platform]
        };
        // One is there at any time, whenever the metrics are read.
        self.info.with_label_values(&labels(release)).set(1);
        let _ = self.info.remove_label_values(&labels(&before));
        release.clone_into(&mut before);
    }
}

/// Registers the other metrics, after all others, and returns the metric of the feature gates.
pub(super) fn register(
    make: &Maker<'_>,
    configured: &BTreeMap<String, bool>,
) -> prometheus::Result<IntGaugeVec> {
    let features = make.gauges(
        "kubernetes_feature_enabled",
        "[BETA] This metric records the data about the stage and enablement of a k8s feature.",
        &["name", "stage"],
    )?;
    set_gates(&features, configured);
    let registered = make.counters(
        "registered_metrics_total",
        "[BETA] The count of registered metrics broken by stability level and deprecation version.",
        &["stability_level", "deprecated_version"],
    )?;
    registered.with_label_values(&["ALPHA", ""]).inc_by(make.alpha());
    // `kubernetes_build_info`, `kubernetes_feature_enabled`, this one, and the two below.
    registered.with_label_values(&["BETA", ""]).inc_by(5);
    make.counter("hidden_metrics_total", "[BETA] The count of hidden metrics.")?;
    make.counter("disabled_metrics_total", "[BETA] The count of disabled metrics.")?;
    Ok(features)
}

/// Sets the metric of the feature gates to the configured values.
pub(super) fn set_gates(features: &IntGaugeVec, configured: &BTreeMap<String, bool>) {
    for gate in gates::all(configured) {
        features.with_label_values(&[gate.name, gate.stage]).set(i64::from(gate.is_on));
    }
}
