//! The metrics that every Kubernetes component has.

use std::collections::BTreeMap;

use prometheus::{IntGauge, IntGaugeVec, Opts};

use super::maker::Maker;
use crate::config::{gates, release};

/// Registers these metrics, after all others, and returns the metric of the feature gates.
pub(super) fn register(
    make: &Maker<'_>,
    configured: &BTreeMap<String, bool>,
    git_version: &str,
) -> prometheus::Result<IntGaugeVec> {
    let (major, minor) = release::major_minor();
    let build = Opts::new(
        "kubernetes_build_info",
        "[ALPHA] A metric with a constant '1' value labeled by the version of Kubernetes that this \
         program follows, and by how it was built",
    );
    let labels = [
        ("major", major),
        ("minor", minor),
        ("git_version", git_version),
        ("git_commit", ""),
        ("git_tree_state", ""),
        ("build_date", ""),
        ("go_version", ""),
        ("compiler", "rustc"),
        ("platform", &release::platform()),
    ];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let info = IntGauge::with_opts(build.const_labels(labels.into_iter().collect()))?;
    make.register(info)?.set(1);

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
    // With `kubernetes_build_info`.
    registered.with_label_values(&["ALPHA", ""]).inc_by(make.alpha() + 1);
    // `kubernetes_feature_enabled`, `registered_metrics_total`, and the two below.
    registered.with_label_values(&["BETA", ""]).inc_by(4);
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
