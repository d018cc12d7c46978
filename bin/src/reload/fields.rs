//! The fields of KubeProxyConfiguration, and what it takes to change each: [`FIELDS`].
//!
//! A test holds the table against the configuration (every field is in it) and against
//! [`Settings`](crate::config::settings::Settings): what has no effect changes nothing in them, and
//! what takes effect at once changes only parts that [`Reloader`](super::Reloader) can apply.

use std::{
    collections::BTreeSet,
    fmt::{self, Write},
};

use proxy_core::model::{IpFamily, parse_ip};
use serde_json::Value;

use crate::config::{settings::Mode, v1alpha1::KubeProxyConfiguration};

/// What it takes to change a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The program applies it while it runs.
    Live,
    /// The program ends, to be started again with it.
    Restart,
    /// The program applies it while it runs, unless the address is of the other family.
    LiveWithinFamily,
    /// It means nothing to this program.
    Nothing,
}

/// When a field counts; at other times it means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Always.
    Always,
    /// With `mode: nftables`.
    Nftables,
    /// With any other, or none.
    NotNftables,
    /// With `mode: ipvs`.
    Ipvs,
    /// With neither of the two.
    NeitherNftablesNorIpvs,
    /// When iptables mode runs, whoever chose it.
    RunsIptables,
}

impl Scope {
    /// Whether it is so with this configuration, when this mode runs.
    fn includes(self, config: &KubeProxyConfiguration, runs: Mode) -> bool {
        let (is_nftables, is_ipvs) = (config.mode == "nftables", config.mode == "ipvs");
        match self {
            Self::Always => true,
            Self::Nftables => is_nftables,
            Self::NotNftables => !is_nftables,
            Self::Ipvs => is_ipvs,
            Self::NeitherNftablesNorIpvs => !is_nftables && !is_ipvs,
            Self::RunsIptables => runs == Mode::Iptables,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Always => "",
            Self::Nftables => "`mode: nftables`",
            Self::NotNftables => "any but `mode: nftables`",
            Self::Ipvs => "`mode: ipvs`",
            Self::NeitherNftablesNorIpvs => "any but `mode: nftables` and `ipvs`",
            Self::RunsIptables => "iptables mode",
        }
    }
}

/// A field, or a section of which all fields are alike but those that are named besides.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its path.
    pub path: &'static str,
    /// What it takes to change it.
    pub effect: Effect,
    /// When it counts.
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

/// All of them. Of two that fit, the longer path counts.
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
    live("iptables.syncPeriod", Scope::NeitherNftablesNorIpvs),
    live("iptables.minSyncPeriod", Scope::NeitherNftablesNorIpvs),
    live("iptables.masqueradeAll", Scope::NotNftables),
    restart("iptables.masqueradeBit", Scope::NotNftables),
    restart("iptables.localhostNodePorts", Scope::RunsIptables),
    always("conntrack", Effect::Live),
    always("oomScoreAdj", Effect::Live),
    always("logging.verbosity", Effect::Live),
    always("logging.vmodule", Effect::Live),
    always("logging.format", Effect::Restart),
    always("logging.flushFrequency", Effect::Restart),
    always("logging.options", Effect::Restart),
    always("featureGates.AllowServiceExternalIPs", Effect::Live),
    always("featureGates.ComponentFlagz", Effect::Live),
    always("featureGates.ComponentStatusz", Effect::Live),
    // The two are of that stage.
    always("featureGates.AllBeta", Effect::Live),
    always("featureGates", Effect::Nothing),
    always("ipvs", Effect::Nothing),
    always("winkernel", Effect::Nothing),
    always("configSyncPeriod", Effect::Nothing),
    always("portRange", Effect::Nothing),
    always("showHiddenMetricsForVersion", Effect::Nothing),
    always("windowsRunAsService", Effect::Nothing),
];

/// The row of [`FIELDS`] for the field with this path.
pub fn field(path: &str) -> Option<&'static Field> {
    let fits = |field: &&Field| {
        path.strip_prefix(field.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    FIELDS.iter().filter(fits).max_by_key(|field| field.path.len())
}

/// A field that has another value.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The field.
    pub path: String,
    /// What it was; `null` if it was not set.
    pub from: Value,
    /// What it is.
    pub to: Value,
    /// What this takes: a [`Effect::LiveWithinFamily`] has been decided.
    pub effect: Effect,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} -> {}", self.path, self.from, self.to)
    }
}

/// The fields that differ between two configurations, in the order of their paths, when this mode
/// runs.
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

/// What it takes to change this field so. One that is in no class is best started with.
fn effect(
    path: &str,
    before: &KubeProxyConfiguration,
    after: &KubeProxyConfiguration,
    runs: Mode,
) -> Effect {
    let Some(field) = field(path) else { return Effect::Restart };
    // If the mode differs the program is started again anyway.
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

/// The paths of everything in `value` that is no object.
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

/// The table, as `docs/configuration.md` has it.
pub fn markdown() -> String {
    let mut table =
        String::from("| Field | If it counts only in a mode | A change |\n|---|---|---|\n");
    for Field { path, effect, scope } in FIELDS {
        let effect = match effect {
            Effect::Live => "is applied",
            Effect::Restart => "ends the program",
            Effect::LiveWithinFamily => "is applied; one to the other family ends the program",
            Effect::Nothing => "means nothing",
        };
        let is_section = FIELDS
            .iter()
            .any(|other| other.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')));
        let what = if is_section { "the rest of " } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| {what}`{path}` | {} | {effect} |", scope.as_str());
    }
    table
}

#[cfg(test)]
mod tests;
