//! In kube-proxy's place: what its installers write starts unchanged, the other mode's rules go
//! when ours are there, and the program ends when its configuration has another mode.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

use crate::{
    manifests::NODE,
    namespace::{HEALTH, METRICS, Namespace, Program, until},
};

/// A directory with a link `kube-proxy` to the program, and manifests of a node.
fn node() -> TempDir {
    let directory = TempDir::new().unwrap();
    symlink(env!("CARGO_BIN_EXE_switchyard"), directory.path().join("kube-proxy")).unwrap();
    fs::create_dir(directory.path().join("manifests")).unwrap();
    fs::write(directory.path().join("manifests/node.yaml"), NODE).unwrap();
    directory
}

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    fs::read_to_string(path).unwrap()
}

/// The arguments in a fixture, one a line.
fn arguments(name: &str) -> Vec<String> {
    let text = fixture(name);
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

fn kube_proxy(namespace: &Namespace, directory: &Path, arguments: &[impl AsRef<OsStr>]) -> Command {
    let mut command = namespace.0.command(directory.join("kube-proxy"));
    command.args(arguments);
    command
}

/// The log of a program that succeeded.
#[track_caller]
fn succeeded(output: Output) -> String {
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{log}");
    log
}

fn manifests(directory: &Path) -> String {
    format!("--manifests={}", directory.join("manifests").display())
}

/// The log of a program that ended with status 1.
#[track_caller]
fn failed(output: Output) -> String {
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{log}");
    log
}

/// The fixtures of files, each with how many warnings it makes.
const FILES: [(&str, usize); 6] = [
    ("kubeadm.yaml", 0),
    ("kubeadm-1.29.yaml", 0),
    ("kubeadm-1.28.yaml", 0),
    ("kubeadm-1.10.yaml", 3),
    ("kind.yaml", 2),
    ("kind-ipvs.yaml", 1),
];

/// The fixtures of arguments, each with how many warnings it makes.
const ARGUMENTS: [(&str, usize); 5] = [
    ("k3s.args", 0),
    ("gce-nftables.args", 0),
    ("gce-iptables.args", 3),
    ("gce-ipvs.args", 0),
    ("old-userspace.args", 5),
];

#[test]
fn what_installers_write_is_understood() {
    let directory = node();
    let mut cases: Vec<(&str, Vec<String>, usize)> = Vec::new();
    for (name, warnings) in FILES {
        let path = directory.path().join(name);
        fs::write(&path, fixture(name)).unwrap();
        let file = format!("--config={}", path.display());
        let mut all = arguments("kubeadm.args");
        all.iter_mut().filter(|a| a.starts_with("--config")).for_each(|a| a.clone_from(&file));
        cases.push((name, all, warnings));
    }
    for (name, warnings) in ARGUMENTS {
        cases.push((name, arguments(name), warnings));
    }
    let written = directory.path().join("written.yaml");
    for (name, mut arguments, warnings) in cases {
        arguments.push(format!("--write-config-to={}", written.display()));
        let output =
            Command::new(directory.path().join("kube-proxy")).args(&arguments).output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{name}: {log}");
        let found = log.lines().filter(|line| line.starts_with('W')).count();
        assert_eq!(found, warnings, "{name}: {log}");
        fs::remove_file(&written).unwrap();
    }
}

/// Starts it with these arguments, and expects it to become healthy.
#[track_caller]
fn starts(arguments: &[String], directory: &Path) {
    let namespace = Namespace::new();
    let all: Vec<String> = arguments.iter().cloned().chain([manifests(directory)]).collect();
    let _program = Program::spawn(kube_proxy(&namespace, directory, &all));
    namespace.wait(HEALTH, "/readyz", |status, _| status == 200);
    assert!(namespace.list("tables").contains("table ip kube-proxy"), "{arguments:?}");
}

#[test]
fn flags_of_other_installers_start_unchanged() {
    let directory = node();
    starts(&arguments("k3s.args"), directory.path());
    // A namespace may not change the machine's limit of connections.
    let mut all = arguments("gce-nftables.args");
    all.extend(["--conntrack-max-per-core=0".into(), "--hostname-override=node-1".into()]);
    starts(&all, directory.path());
}

#[test]
fn preparing_the_node_is_all_that_init_only_does() {
    let namespace = Namespace::new();
    let directory = node();
    let all = ["--init-only", "--conntrack-max-per-core=0", "--conntrack-udp-timeout=77s"];
    succeeded(kube_proxy(&namespace, directory.path(), &all).output().unwrap());
    let setting = |name| namespace.0.setting(name).unwrap();
    assert_eq!(setting("netfilter/nf_conntrack_udp_timeout"), "77");
    let established = setting("netfilter/nf_conntrack_tcp_timeout_established");
    assert_eq!(established, "86400", "kube-proxy's default");
    let programmed = namespace.list("ruleset");
    assert!(programmed.contains("chain loopback-guard"), "{programmed}");
    assert_eq!(programmed.matches("chain ").count(), 1, "nothing else: {programmed}");

    for (mode, argument, expected) in [
        ("iptables", "--iptables-localhost-nodeports=false", "0"),
        ("nftables", "--nodeport-addresses=primary,localhost", "1"),
    ] {
        namespace.0.sysctl(&[("ipv4/conf/all/route_localnet", "0")]).unwrap();
        let mode = format!("--proxy-mode={mode}");
        let all = ["--init-only", "--conntrack-max-per-core=0", &mode, argument];
        succeeded(kube_proxy(&namespace, directory.path(), &all).output().unwrap());
        assert_eq!(setting("ipv4/conf/all/route_localnet"), expected, "{mode:?} {argument}");
    }
}

/// The rules that guard loopback addresses cannot be written, since another program has a chain of
/// that name: the setting is not made, and all else is.
#[test]
fn init_only_does_without_localhost() {
    let namespace = Namespace::new();
    let directory = node();
    let chain = "add table ip kube-proxy; add chain ip kube-proxy loopback-guard \
                 { type filter hook output priority 0; }";
    namespace.0.output("nft", &[chain], "").unwrap();
    let all = [
        "--init-only",
        "--proxy-mode=nftables",
        "--nodeport-addresses=primary,localhost",
        "--conntrack-max-per-core=0",
        "--conntrack-udp-timeout=77s",
    ];
    let log = succeeded(kube_proxy(&namespace, directory.path(), &all).output().unwrap());
    assert!(log.contains("\"Node not prepared for localhost node ports\" err="), "{log}");
    let setting = |name| namespace.0.setting(name).unwrap();
    assert_eq!(setting("ipv4/conf/all/route_localnet"), "0");
    assert_eq!(setting("netfilter/nf_conntrack_udp_timeout"), "77");
}

#[test]
fn a_limit_that_cannot_be_set_is_an_error() {
    let namespace = Namespace::new();
    let directory = node();
    let limit = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap();
    let more = limit.trim().parse::<u64>().unwrap() + 1;
    let all = ["--conntrack-max-per-core=1".to_owned(), format!("--conntrack-min={more}")];
    let log = failed(kube_proxy(&namespace, directory.path(), &all).output().unwrap());
    let error = "could not set conntrack parameters from kube-proxy configuration: cannot change";
    assert!(log.contains(error), "{log}");
}

/// As on a node that is a container.
#[test]
fn a_default_that_cannot_be_set_does_not_keep_a_node_from_being_prepared() {
    let namespace = Namespace::new();
    let directory = node();
    let limit = directory.path().join("limit");
    fs::write(&limit, "1").unwrap();
    let script = "mount --bind $0 $1 && mount -o remount,bind,ro $1 && shift && exec $@";
    let mut command = namespace.0.command("unshare");
    command.args(["-m", "sh", "-c", script]).arg(limit);
    command.args(["/proc/sys/net/netfilter/nf_conntrack_max", env!("CARGO_BIN_EXE_switchyard")]);
    command.args(["--master=http://127.0.0.1:1", "--proxy-mode=userspace", "--init-only"]);
    let log = succeeded(command.output().unwrap());
    let warning = "\"Failed to set conntrack limits and timeouts\" err=\"cannot change";
    assert!(log.contains(warning) && log.contains("\"Node prepared\""), "{log}");
}

#[test]
fn the_first_mode_that_works_is_used() {
    let namespace = Namespace::new();
    let directory = node();
    let programs = directory.path().join("programs");
    fs::create_dir(&programs).unwrap();
    // Without the program that this transport needs, nftables cannot be used.
    let manifests = manifests(directory.path());
    let all = ["--nft-transport=json", "--userspace-capture=iptables", &manifests];
    let mut command = kube_proxy(&namespace, directory.path(), &all);
    let log = failed(command.env("PATH", &programs).output().unwrap());
    let last = log.lines().last().unwrap();
    let lacking = last.split_once("no mode can be used on this node: ").expect(last).1;
    assert!(lacking.starts_with("nftables: "), "{lacking}");
    assert!(
        lacking.ends_with(
            "; iptables: iptables, iptables-save and iptables-restore, ip6tables, ip6tables-save \
             and ip6tables-restore are not installed; userspace: the capture mode iptables cannot be \
             used: iptables, iptables-save and iptables-restore, ip6tables, ip6tables-save and \
             ip6tables-restore are not installed\""
        ),
        "{lacking}"
    );

    // One family is enough.
    for name in ["iptables", "iptables-save", "iptables-restore"] {
        let path = namespace.0.output("which", &[name], "").unwrap();
        symlink(path.trim(), programs.join(name)).unwrap();
    }
    command.env("PATH", &programs);
    let program = Program::spawn(command);
    namespace.wait(HEALTH, "/readyz", |status, _| status == 200);
    assert_eq!(namespace.get(METRICS, "/proxyMode").unwrap().1, "iptables");
    let saved = |program| namespace.listing(program, &[]);
    // Healthy is also a program whose first sync is about to begin.
    until("rules are there", || saved("iptables-save").contains(":KUBE-SERVICES "));
    assert!(!saved("ip6tables-save").contains("KUBE-"));
    let metrics = namespace.get(METRICS, "/metrics").unwrap().1;
    assert!(metrics.contains("ip_family=\"IPv4\"") && !metrics.contains("ip_family=\"IPv6\""));
    let (_, log) = program.terminate();
    let passed_over = |line: &&str| line.contains("\"Proxy mode not supported by this node\"");
    assert_eq!(log.lines().filter(passed_over).count(), 1, "{log}");
}

/// Runs it in a mode until it is healthy and `done`, and ends it. In nftables mode, it finds no
/// programs, as in an image with the binary alone.
#[track_caller]
fn run_in(namespace: &Namespace, directory: &Path, mode: &str, done: impl Fn() -> bool) {
    let mode_flag = format!("--proxy-mode={mode}");
    let arguments = [manifests(directory), "--hostname-override=node-1".into(), mode_flag];
    let mut command = kube_proxy(namespace, directory, &arguments);
    if mode == "nftables" {
        command.env("PATH", "/nonexistent");
    }
    let _program = Program::spawn(command);
    namespace.wait(HEALTH, "/readyz", |status, _| status == 200);
    until(mode, done);
}

#[test]
fn the_other_modes_rules_go_when_ours_are_there() {
    let namespace = Namespace::new();
    let directory = node();
    let has_chains = || {
        let saved = namespace.listing("iptables-save", &[]);
        saved.contains(":KUBE-SERVICES ")
    };
    // What guards loopback addresses stays.
    let has_table = || namespace.list("ruleset").contains("map service-ips");
    run_in(&namespace, directory.path(), "iptables", || has_chains() && !has_table());
    let chain = ["-w", "5", "-t", "nat", "-N", "KUBE-SERVICES"];
    namespace.0.output("ip6tables-legacy", &chain, "").unwrap();
    let has_legacy =
        || namespace.listing("ip6tables-legacy-save", &["-t", "nat"]).contains("KUBE-");
    assert!(has_legacy());
    let is_done = || !has_chains() && !has_legacy() && has_table();
    run_in(&namespace, directory.path(), "nftables", is_done);
    run_in(&namespace, directory.path(), "iptables", || has_chains() && !has_table());

    for _ in 0..2 {
        succeeded(kube_proxy(&namespace, directory.path(), &["--cleanup"]).output().unwrap());
        assert!(!has_chains() && !has_table());
    }
}
