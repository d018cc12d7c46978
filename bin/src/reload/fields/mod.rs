//! The table of KubeProxyConfiguration's fields, with the effect of a change of each: [`FIELDS`].
//!
//! Tests compare the table with the configuration, so that no field is missing, and with
//! [`Settings`](crate::config::settings::Settings): a field without effect changes no setting, and
//! a field that is applied changes only settings that [`Reloader`](super::Reloader) can apply.

use std::collections::BTreeSet;

use serde_json::Value;
use switchyard_core::model::{IpFamily, parse_ip};
use switchyard_core::proxier::Mode;

use crate::config::v1alpha1::KubeProxyConfiguration;

/// The effect of a change of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The program applies the change while it runs.
    Live,
    /// The program ends, so that its supervisor restarts it.
    Restart,
    /// The program applies the change while it runs; a change to an address of the other family
    /// makes it end.
    LiveWithinFamily,
    /// The program does not use the field.
    Nothing,
}

/// The modes in which a field has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every mode.
    Always,
    /// `mode: nftables`.
    Nftables,
    /// Any other `mode`, or none.
    NotNftables,
    /// `mode: ipvs`.
    Ipvs,
    /// Any `mode` but nftables and ipvs, or none.
    NeitherNftablesNorIpvs,
    /// Nftables mode as the mode that runs, whether `mode` names it or not.
    RunsNftables,
    /// Any mode but ipvs as the mode that runs.
    RunsAnyButIpvs,
    /// Ipvs mode as the mode that runs.
    RunsIpvs,
}

impl Scope {
    /// Whether a field has an effect with this configuration, while the mode `runs` runs.
    fn includes(self, config: &KubeProxyConfiguration, runs: Mode) -> bool {
        let (is_nftables, is_ipvs) = (config.mode == "nftables", config.mode == "ipvs");
        match self {
            Self::Always => true,
            Self::Nftables => is_nftables,
            Self::NotNftables => !is_nftables,
            Self::Ipvs => is_ipvs,
            Self::NeitherNftablesNorIpvs => !is_nftables && !is_ipvs,
            Self::RunsNftables => runs == Mode::NFTABLES,
            Self::RunsAnyButIpvs => runs != Mode::IPVS,
            Self::RunsIpvs => runs == Mode::IPVS,
        }
    }
}

/// A row of the table: a field, or a section without the fields that have their own rows.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The path of the field or section.
    pub path: &'static str,
    /// The effect of a change.
    pub effect: Effect,
    /// The modes in which there is an effect.
    pub scope: Scope,
}

const fn always(path: &'static str, effect: Effect) -> Field {
    Field { path, effect, scope: Scope::Always }
}

const fn live(path: &'static str, scope: Scope) -> Field {
    Field { path, effect: Effect::Live, scope }
}

const fn restart(path: &'static str, scope: Scope) -> Field {
    Field { path, effect: Effect::Restart, scope }
}

/// All rows. A field belongs to the row with the longest path that is a prefix of the field.
pub const FIELDS: &[Field] = &[
    always("apiVersion", Effect::Nothing),
    always("kind", Effect::Nothing),
    always("mode", Effect::Restart),
    always("clientConnection", Effect::Restart),
    always("hostnameOverride", Effect::Restart),
    always("bindAddress", Effect::LiveWithinFamily),
    always("bindAddressHardFail", Effect::Live),
    always("healthzBindAddress", Effect::Live),
    always("metricsBindAddress", Effect::Live),
    always("enableProfiling", Effect::Live),
    always("clusterCIDR", Effect::Live),
    always("detectLocalMode", Effect::Live),
    always("detectLocal", Effect::Live),
    always("nodePortAddresses", Effect::Live),
    live("nftables.syncPeriod", Scope::Nftables),
    live("nftables.minSyncPeriod", Scope::Nftables),
    live("nftables.masqueradeAll", Scope::Nftables),
    restart("nftables.masqueradeBit", Scope::Nftables),
    live("ipvs.syncPeriod", Scope::Ipvs),
    live("ipvs.minSyncPeriod", Scope::Ipvs),
    restart("ipvs", Scope::RunsIpvs),
    live("iptables.syncPeriod", Scope::NeitherNftablesNorIpvs),
    live("iptables.minSyncPeriod", Scope::NeitherNftablesNorIpvs),
    live("iptables.masqueradeAll", Scope::NotNftables),
    restart("iptables.masqueradeBit", Scope::NotNftables),
    live("iptables.localhostNodePorts", Scope::RunsAnyButIpvs),
    always("conntrack", Effect::Live),
    always("oomScoreAdj", Effect::Live),
    always("logging.verbosity", Effect::Live),
    always("logging.vmodule", Effect::Live),
    always("logging.format", Effect::Restart),
    always("logging.flushFrequency", Effect::Restart),
    always("logging.options", Effect::Restart),
    always("featureGates.AllowServiceExternalIPs", Effect::Live),
    live("featureGates.KubeProxyNFTablesLocalhostNodePorts", Scope::RunsNftables),
    // The gate above is beta here.
    always("featureGates.AllBeta", Effect::Live),
    always("featureGates", Effect::Nothing),
    always("winkernel", Effect::Nothing),
    always("configSyncPeriod", Effect::Nothing),
    always("portRange", Effect::Nothing),
    always("showHiddenMetricsForVersion", Effect::Nothing),
    always("windowsRunAsService", Effect::Nothing),
];

/// Returns the row of [`FIELDS`] for the field with this path.
pub fn field(path: &str) -> Option<&'static Field> {
    let fits = |field: &&Field| {
        path.strip_prefix(field.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    FIELDS.iter().filter(fits).max_by_key(|field| field.path.len())
}

/// A field whose value differs between two configurations.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub path: String,
    /// The old value; `null` if the field was not set.
    pub from: Value,
    /// The new value; `null` if the field is not set.
    pub to: Value,
    /// The effect, which is never [`Effect::LiveWithinFamily`].
    pub effect: Effect,
}

/// Returns the fields that differ between two configurations, in the order of their paths, with
/// their effects while the mode `runs` runs.
pub fn changes(
    before: &KubeProxyConfiguration,
    after: &KubeProxyConfiguration,
    runs: Mode,
) -> Vec<Change> {
    let [from, to] = [before, after].map(|config| serde_json::to_value(config).unwrap_or_default());
    let mut paths = BTreeSet::new();
    for value in [&from, &to] {
        leaves(value, &mut Vec::new(), &mut paths);
    }
    let changed = paths.into_iter().filter_map(|path| {
        let [from, to] = [&from, &to].map(|value| at(value, &path).clone());
        (from != to).then(|| {
            let path = path.join(".");
            let effect = effect(&path, before, after, runs);
            Change { path, from, to, effect }
        })
    });
    changed.collect()
}

/// Returns the effect of the change of a field. A field that is not in the table requires a
/// restart.
fn effect(
    path: &str,
    before: &KubeProxyConfiguration,
    after: &KubeProxyConfiguration,
    runs: Mode,
) -> Effect {
    let Some(field) = field(path) else { return Effect::Restart };
    // A change of the mode itself requires a restart anyway.
    if !field.scope.includes(before, runs) && !field.scope.includes(after, runs) {
        return Effect::Nothing;
    }
    match field.effect {
        Effect::LiveWithinFamily => {
            let family = |config: &KubeProxyConfiguration| {
                parse_ip(&config.bind_address).ok().map(|ip| IpFamily::of(&ip))
            };
            if family(before) == family(after) { Effect::Live } else { Effect::Restart }
        }
        effect => effect,
    }
}

/// Adds the paths of all values in `value` that are not objects to `found`.
fn leaves(value: &Value, path: &mut Vec<String>, found: &mut BTreeSet<Vec<String>>) {
    let Value::Object(fields) = value else {
        found.insert(path.clone());
        return;
    };
    for (name, value) in fields {
        path.push(name.clone());
        leaves(value, path, found);
        path.pop();
    }
}

fn at<'v>(value: &'v Value, path: &[String]) -> &'v Value {
    path.iter().fold(value, |value, name| value.get(name).unwrap_or(&Value::Null))
}

#[cfg(test)]
mod tests;
