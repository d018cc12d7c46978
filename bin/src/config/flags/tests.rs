//! The table of flags: whether it is sound, whether each does what it says, and whether the
//! reference in `docs/` is the table's.

use std::{collections::BTreeSet, fs, path::Path};

use super::{CalledAs, Flag, Flags, Kind, Sets, Status, reference, table::FLAGS, value};
use crate::config::{self, cli, settings::MODES, testing::flags};

/// A value that is not the default, as text.
fn other_value(flag: &Flag) -> &'static str {
    match (flag.name, flag.kind) {
        (_, Kind::Switch) if flag.default == "true" => "false",
        (_, Kind::Switch) => "true",
        ("show-hidden-metrics-for-version", _) => "1.36",
        ("proxy-mode", _) => "nftables",
        ("detect-local-mode", _) => "NodeCIDR",
        ("cluster-cidr", _) => "10.1.0.0/16",
        ("nodeport-addresses" | "ipvs-exclude-cidrs", _) => "10.2.0.0/16,fd00::/64",
        ("logging-format", _) => "json",
        (_, Kind::Text) => "some-text",
        (_, Kind::Int32 | Kind::Uint32) => "7",
        (_, Kind::Float32) => "7.5",
        (_, Kind::Duration | Kind::Limit) => "7s",
        (_, Kind::List) => "a,b",
        (_, Kind::Gates) => "ComponentFlagz=false",
        (_, Kind::Levels) => "run=7",
        (_, Kind::Ip) => "192.0.2.7",
        (_, Kind::Listen) => "192.0.2.7:7777",
        (_, Kind::Quantity) => "7Ki",
        (_, Kind::Word(words)) => words[1],
        (_, Kind::Version) => "raw",
    }
}

/// Further arguments that must be given for the flag to be legal, or to mean something.
fn company(flag: &Flag) -> &'static [&'static str] {
    match (flag.name, flag.sets) {
        (name, _) if name.starts_with("log-") => &["--feature-gates=LoggingAlphaOptions=true"],
        (_, Sets::IpvsOnly(_)) => &["--proxy-mode=ipvs"],
        ("healthz-port", _) => &["--healthz-bind-address=0.0.0.0"],
        ("metrics-port", _) => &["--metrics-bind-address=0.0.0.0"],
        _ => &[],
    }
}

/// The field at a path of the whole configuration.
fn field(flags: &Flags, path: &str) -> serde_json::Value {
    let loaded = config::load(flags, &MODES).unwrap_or_else(|error| panic!("{path}: {error:?}"));
    let config = serde_json::to_value(&loaded.config).unwrap();
    path.split('.').fold(config, |value, key| value[key].clone())
}

fn path(flag: &Flag) -> Option<String> {
    match flag.sets {
        Sets::Field(path) => Some(path.into()),
        Sets::Section(name) | Sets::SectionUnlessIpvs(name) => Some(format!("iptables.{name}")),
        Sets::IpvsOnly(name) => Some(format!("ipvs.{name}")),
        Sets::PortOf(path) => Some(path.into()),
        Sets::Program | Sets::Nothing => None,
    }
}

#[test]
fn the_table_is_sound() {
    let names: BTreeSet<&str> = FLAGS.iter().map(|flag| flag.name).collect();
    assert_eq!(names.len(), FLAGS.len(), "no name is there twice");
    for flag in FLAGS {
        let gone = matches!(flag.status, Status::Gone(_));
        assert!(!flag.name.contains('_') && flag.name == flag.name.to_lowercase(), "{}", flag.name);
        assert_eq!(flag.help.is_empty(), gone, "{}: help", flag.name);
        if !flag.default.is_empty() && flag.kind != Kind::Version {
            value::read(flag.kind, flag.default).unwrap_or_else(|e| panic!("{}: {e}", flag.name));
        }
    }
}

#[test]
fn each_flag_has_the_default_it_says() {
    let nothing = flags("kube-proxy", &[""; 0]);
    for flag in FLAGS.iter().filter(|flag| !matches!(flag.status, Status::Gone(_))) {
        let Some(path) = path(flag) else { continue };
        if flag.default.is_empty() || matches!(flag.sets, Sets::PortOf(_)) {
            continue;
        }
        let found = field(&nothing, &path);
        let text = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
        let same = text == flag.default
            || text.trim_end_matches(".0") == flag.default.trim_end_matches(".0");
        assert!(same, "--{}: {text} is not {}", flag.name, flag.default);
    }
}

#[test]
fn each_flag_sets_its_field() {
    for flag in FLAGS {
        let Some(path) = path(flag) else { continue };
        let company: Vec<String> = company(flag).iter().map(|&flag| flag.to_owned()).collect();
        let before = field(&flags("kube-proxy", &company), &path);
        let value = other_value(flag);
        for name in [flag.name.to_owned(), flag.name.replace('-', "_")] {
            let mut arguments = company.clone();
            arguments.push(format!("--{name}={value}"));
            let after = field(&flags("kube-proxy", &arguments), &path);
            if flag.name == "proxy-port-range" {
                assert_eq!(after, value, "it is kept for those who read it");
            }
            assert_ne!(after, before, "{arguments:?} does not change {path}");
        }
    }
}

#[test]
fn every_flag_is_taken_in_every_form() {
    for flag in FLAGS {
        let value = other_value(flag);
        let mut forms = vec![vec![format!("--{}={value}", flag.name)]];
        if flag.kind.stands_alone() {
            forms.push(vec![format!("--{}", flag.name)]);
        } else {
            forms.push(vec![format!("--{}", flag.name), value.to_owned()]);
        }
        if let Some(letter) = flag.short {
            forms.push(vec![format!("-{letter}"), value.to_owned()]);
            forms.push(vec![format!("-{letter}={value}")]);
            forms.push(vec![format!("-{letter}{value}")]);
        }
        for arguments in forms {
            let flags = flags("switchyard", &arguments);
            let [given] = &flags.given[..] else { panic!("{arguments:?}: {flags:?}") };
            assert_eq!(given.name, flag.name);
            let alone = arguments == [format!("--{}", flag.name)];
            assert_eq!(given.text, if alone { "true" } else { value }, "{arguments:?}");
        }
    }
}

/// A file that says something of its own about fields of which flags say something else.
const FILE: &str = "\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: 10.9.0.0/16
hostnameOverride: from-file
logging: {verbosity: 3, vmodule: [{filePattern: file, verbosity: 1}]}
";

#[test]
fn beside_a_file_kube_proxys_flags_count_for_little() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("config.conf");
    fs::write(&path, FILE).unwrap();
    let arguments = [
        &*format!("--config={}", path.display()),
        "--cluster-cidr=10.1.0.0/16",
        "--proxy-mode=iptables",
        "--kubeconfig=/k",
        "--healthz-port=0",
        "--hostname-override=from-flag",
        "--master=https://m",
        "--v=5",
        "--vmodule=flag=2",
    ]
    .map(str::to_owned);
    let loaded = config::load(&flags("/usr/local/bin/kube-proxy", &arguments), &MODES).unwrap();
    let config = &loaded.config;
    assert_eq!(config.cluster_cidr, "10.9.0.0/16");
    assert_eq!(config.mode, "nftables");
    assert_eq!(config.client_connection.kubeconfig, "");
    assert_eq!(config.healthz_bind_address, "0.0.0.0:10256");
    assert_eq!(config.hostname_override, "from-flag");
    assert_eq!(config.logging.verbosity, 5);
    let patterns: Vec<&str> =
        config.logging.vmodule.iter().map(|entry| &*entry.file_pattern).collect();
    assert_eq!(patterns, ["flag", "file"], "the flag's come first");
    assert_eq!(
        loaded.warnings,
        ["ignored beside --config, as kube-proxy ignores them: \
          --kubeconfig, --healthz-port, --proxy-mode, --cluster-cidr"]
    );

    let loaded = config::load(&flags("/usr/bin/switchyard", &arguments), &MODES).unwrap();
    assert_eq!(loaded.config.cluster_cidr, "10.1.0.0/16");
    assert_eq!(loaded.config.mode, "iptables");
    assert_eq!(loaded.config.client_connection.kubeconfig, "/k");
    assert_eq!(loaded.config.healthz_bind_address, "");
    assert_eq!(loaded.settings.servers.healthz, None);
}

#[test]
fn the_programs_name_decides() {
    let called = |program: &str| cli::parse([program.into()]).unwrap().called_as;
    assert_eq!(called("kube-proxy"), CalledAs::KubeProxy);
    assert_eq!(called("/usr/local/bin/kube-proxy"), CalledAs::KubeProxy);
    assert_eq!(called("/kube-proxy/switchyard"), CalledAs::Switchyard);
    assert_eq!(called("kube-proxy-2"), CalledAs::Switchyard);
}

#[test]
fn ports_have_flags_of_their_own() {
    let load = |arguments: &[&str]| config::load(&flags("kube-proxy", arguments), &MODES);
    for (address, expected, has_effect) in [
        (None, Some("0.0.0.0:10256"), false),
        (Some(""), Some("0.0.0.0:10256"), false),
        (Some("::"), Some("[::]:1"), true),
        (Some("1.2.3.4:10256"), Some("1.2.3.4:10256"), false),
    ] {
        let address = address.map(|address| format!("--healthz-bind-address={address}"));
        let arguments =
            [Some("--healthz-port=1"), address.as_deref()].map(|it| it.unwrap_or("--v=0"));
        let loaded = load(&arguments).unwrap();
        let healthz = loaded.settings.servers.healthz.map(|address| address.to_string());
        assert_eq!(healthz.as_deref(), expected);
        let warning = expected.filter(|_| !has_effect);
        let warning =
            warning.map(|at| format!("--healthz-port has no effect, as the address is {at}"));
        assert_eq!(loaded.warnings, Vec::from_iter(warning));
    }
    assert_eq!(load(&["--healthz-port=0"]).unwrap().settings.servers.healthz, None);
    let error = load(&["--metrics-port=0"]).unwrap_err();
    let text = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    assert!(text.contains("MetricsBindAddress: Invalid value: \"\": must be IP:port"), "{text}");
}

/// Set this to write the reference instead of checking it.
const WRITE: &str = "SWITCHYARD_WRITE_DOCS";

#[test]
fn the_reference_is_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/flags.md");
    let expected = reference::markdown();
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "docs/flags.md is stale: run this test with {WRITE}=1");
}
