//! Tests of the table against the configuration, the settings and the documentation.

use std::{collections::BTreeMap, fs, path::Path};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::config::{
    gates,
    settings::{FlagOnlySettings, Settings},
};

fn config(change: impl FnOnce(&mut KubeProxyConfiguration)) -> KubeProxyConfiguration {
    let mut config =
        KubeProxyConfiguration { hostname_override: "node-1".into(), ..Default::default() };
    change(&mut config);
    config.apply_defaults();
    config
}

/// Returns the paths of the leaves of a configuration that has all its fields.
fn all_paths() -> Vec<String> {
    let config = config(|config| {
        config.feature_gates =
            gates::all(&config.feature_gates).map(|g| (g.name.to_owned(), true)).collect();
    });
    let mut found = BTreeSet::new();
    leaves(&serde_json::to_value(config).unwrap(), &mut Vec::new(), &mut found);
    found.into_iter().map(|path| path.join(".")).collect()
}

#[test]
fn every_field_is_in_the_table() {
    let paths = all_paths();
    assert!(paths.len() > 50, "{paths:?}");
    for path in &paths {
        assert!(field(path).is_some(), "{path}");
    }
    // And nothing else is.
    for row in FIELDS {
        assert!(paths.iter().any(|path| field(path).unwrap().path == row.path), "{}", row.path);
    }
    assert_eq!(field("conntrackish").map(|field| field.path), None);
}

/// Returns `config` with another value in the field, which is valid wherever the field has an
/// effect.
fn with_another(config: &KubeProxyConfiguration, path: &str) -> KubeProxyConfiguration {
    if let Some(gate) = path.strip_prefix("featureGates.") {
        let mut gates = config.feature_gates.clone();
        let is_on = gates::is_on(&gates, gate);
        gates.insert(gate.to_owned(), !is_on);
        return KubeProxyConfiguration { feature_gates: gates, ..config.clone() };
    }
    let mut value = serde_json::to_value(config).unwrap();
    let names: Vec<&str> = path.split('.').collect();
    let (last, sections) = names.split_last().unwrap();
    let section = sections.iter().fold(&mut value, |value, name| &mut value[*name]);
    let now = &mut section[*last];
    *now = match (path, &*now) {
        ("bindAddress", _) => json!("192.0.2.1"),
        ("healthzBindAddress" | "metricsBindAddress", _) => json!("192.0.2.1:1"),
        ("clusterCIDR", _) => json!("10.0.0.0/8"),
        ("detectLocalMode", _) => json!("NodeCIDR"),
        ("nodePortAddresses", _) => json!(["192.0.2.0/24"]),
        ("logging.format", _) => json!("json"),
        ("logging.vmodule", _) => json!([{"filePattern": "run", "verbosity": 3}]),
        ("mode", Value::String(mode)) if mode == "iptables" => json!("nftables"),
        ("mode", _) => json!("iptables"),
        (_, Value::Bool(is_on)) => json!(!is_on),
        (_, Value::Number(number)) if number.is_f64() => json!(7.5),
        (_, Value::Number(_)) => json!(7),
        (_, Value::Null) => json!(1),
        (_, Value::String(text)) if text.ends_with('s') => json!("7s"),
        (_, Value::String(_)) => json!("7"),
        (_, Value::Array(_)) => json!(["192.0.2.0/24"]),
        (_, other) => panic!("{path}: {other}"),
    };
    serde_json::from_value(value).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn settings(config: &KubeProxyConfiguration, runs: Mode) -> Settings {
    Settings::new(config, &FlagOnlySettings::default(), runs).unwrap()
}

/// Returns the settings, but those that can be applied while the program runs as in `usual`.
fn fixed(mut settings: Settings, usual: &Settings) -> Settings {
    let node_name = settings.node.node_name;
    settings.node = usual.node.clone();
    settings.node.node_name = node_name;
    settings.periods = usual.periods;
    settings.servers = usual.servers.clone();
    settings.log.verbosity = usual.log.verbosity;
    settings.log.vmodule.clone_from(&usual.log.vmodule);
    settings.conntrack = usual.conntrack;
    settings.oom_score_adj = usual.oom_score_adj;
    settings
}

/// The configured modes, each with the mode that runs.
const MODES: [(&str, Mode); 7] = [
    ("", Mode::NFTABLES),
    ("", Mode::IPTABLES),
    ("nftables", Mode::NFTABLES),
    ("iptables", Mode::IPTABLES),
    ("ipvs", Mode::IPVS),
    ("ipvs", Mode::IPTABLES),
    ("userspace", Mode::USERSPACE),
];

#[test]
fn the_table_has_the_effect_of_each_change() {
    // Each mode with each way to detect local traffic, so that every field has an effect somewhere.
    let mut effects: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (mode, runs) in MODES {
        for detect in ["ClusterCIDR", "BridgeInterface", "InterfaceNamePrefix"] {
            let before = config(|config| {
                config.mode = mode.into();
                config.detect_local_mode = detect.into();
            });
            let settings = |config: &_| settings(config, runs);
            let usual = settings(&before);
            for path in all_paths() {
                let after = with_another(&before, &path);
                let found = changes(&before, &after, runs);
                let [Change { effect, .. }] = found[..] else { panic!("{path}: {found:?}") };
                let at_once = settings(&after);
                let case = format!("{path} in mode {mode:?}, {runs}");
                match effect {
                    Effect::Nothing => assert_eq!(at_once, usual, "{case}"),
                    Effect::Live => assert_eq!(fixed(at_once, &usual), usual, "{case}"),
                    Effect::Restart => {}
                    Effect::LiveWithinFamily => panic!("{case} is undecided"),
                }
                effects.entry(path).or_default().insert(format!("{effect:?}"));
            }
        }
    }
    // A field with an effect in some mode has it in one of the cases.
    for row in FIELDS.iter().filter(|row| row.effect != Effect::Nothing) {
        let of_row = effects.iter().filter(|(path, _)| field(path).unwrap().path == row.path);
        let all: BTreeSet<&str> = of_row.flat_map(|(_, e)| e).map(String::as_str).collect();
        assert!(all.iter().any(|effect| *effect != "Nothing"), "{}", row.path);
        let only_in_some = row.scope != Scope::Always;
        assert_eq!(all.contains("Nothing"), only_in_some, "{}", row.path);
    }
}

proptest! {
    #![proptest_config(switchyard_core::testing::proptest_config(256))]

    /// Several changes have the effects of each, though fields depend on each other.
    #[test]
    fn changes_together_do_what_each_does(
        paths in proptest::sample::subsequence(all_paths(), 0..12),
        (mode, runs) in proptest::sample::select(&MODES[..]),
        bind in proptest::sample::select(vec!["0.0.0.0", "192.0.2.7", "::"]),
    ) {
        let before = config(|config| {
            config.mode = mode.into();
            config.bind_address = bind.into();
        });
        let after = paths.iter().fold(before.clone(), |config, path| with_another(&config, path));
        let found = changes(&before, &after, runs);
        let paths_found: BTreeSet<&str> = found.iter().map(|change| change.path.as_str()).collect();
        prop_assert_eq!(paths_found, paths.iter().map(String::as_str).collect::<BTreeSet<_>>());
        if found.iter().all(|change| change.effect != Effect::Restart) {
            let usual = settings(&before, runs);
            prop_assert_eq!(fixed(settings(&after, runs), &usual), usual);
        }
    }
}

#[test]
fn changes_name_field_and_values() {
    let before = config(|config| config.mode = "nftables".into());
    let mut after = before.clone();
    assert_eq!(changes(&before, &after, Mode::NFTABLES), []);
    after.node_port_addresses = vec!["10.0.0.0/8".into()];
    after.conntrack.max_per_core = Some(0);
    after.feature_gates.insert("AllowServiceExternalIPs".into(), false);
    after.iptables.masquerade_bit = Some(7);
    let found = changes(&before, &after, Mode::NFTABLES);
    let text = |it: &Change| format!("{}: {} -> {}", it.path, it.from, it.to);
    let texts: Vec<String> = found.iter().map(text).collect();
    assert_eq!(
        texts,
        [
            "conntrack.maxPerCore: 32768 -> 0",
            "featureGates.AllowServiceExternalIPs: null -> false",
            "iptables.masqueradeBit: 14 -> 7",
            "nodePortAddresses: [] -> [\"10.0.0.0/8\"]",
        ]
    );
    let effects: Vec<Effect> = found.iter().map(|change| change.effect).collect();
    assert_eq!(effects, [Effect::Live, Effect::Live, Effect::Nothing, Effect::Live]);
}

#[test]
fn another_primary_family_is_a_restart() {
    let to = |address: &str| {
        let before = config(|config| config.bind_address = "192.0.2.1".into());
        let after = KubeProxyConfiguration { bind_address: address.into(), ..before.clone() };
        changes(&before, &after, Mode::NFTABLES)[0].effect
    };
    assert_eq!(to("192.0.2.2"), Effect::Live);
    assert_eq!(to("0.0.0.0"), Effect::Live);
    assert_eq!(to("2001:db8::1"), Effect::Restart);
    assert_eq!(to("::"), Effect::Restart);
}

/// The variable that makes the test write the table instead of checking it.
const WRITE: &str = "SWITCHYARD_WRITE_DOCS";

#[test]
fn the_documentation_has_the_table() {
    const BEGIN: &str = "<!-- begin: what a change does -->\n";
    const END: &str = "<!-- end: what a change does -->\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let page = fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(BEGIN).unwrap();
    let (found, tail) = rest.split_once(END).unwrap();
    let expected = format!("\n{}\n", markdown());
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, format!("{head}{BEGIN}{expected}{END}{tail}")).unwrap();
        return;
    }
    assert!(found == expected, "docs/configuration.md is stale: run this test with {WRITE}=1");
}

impl Scope {
    fn as_str(self) -> &'static str {
        match self {
            Self::Always => "all",
            Self::Nftables => "`mode: nftables`",
            Self::NotNftables => "any but `mode: nftables`",
            Self::Ipvs => "`mode: ipvs`",
            Self::NeitherNftablesNorIpvs => "any but `mode: nftables` and `ipvs`",
            Self::RunsNftables => "nftables mode",
            Self::RunsAnyButIpvs => "any mode but ipvs",
            Self::RunsIpvs => "ipvs mode",
        }
    }
}

/// Returns the table in Markdown, as in `docs/configuration.md`.
fn markdown() -> String {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for Field { path, effect, scope } in FIELDS {
        let effect = match effect {
            Effect::Live => "is applied",
            Effect::Restart => "requires a restart",
            Effect::LiveWithinFamily => {
                "is applied; a change to the other family requires a restart"
            }
            Effect::Nothing => "has no effect",
        };
        let is_section = FIELDS
            .iter()
            .any(|other| other.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')));
        let what = if is_section { "the rest of " } else { "" };
        let (field, row) = (format!("{what}`{path}`"), format!("{} | {effect}", scope.as_str()));
        match rows.iter_mut().find(|(other, _)| *other == row) {
            Some((_, fields)) => fields.push(field),
            None => rows.push((row, vec![field])),
        }
    }
    let rows = rows.iter().map(|(row, fields)| format!("| {} | {row} |\n", fields.join(", ")));
    format!("| Fields | Modes | A change |\n|---|---|---|\n{}", rows.collect::<String>())
}
