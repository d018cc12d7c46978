//! The program as its users start it: what it prints, and how it ends.

use std::{
    fs,
    io::Read,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn switchyard(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_switchyard")).args(arguments).output().unwrap()
}

/// Runs it, and expects it to end with this status. Returns what it printed on either stream.
#[track_caller]
fn expect(status: i32, arguments: &[&str]) -> (String, String) {
    let output = switchyard(arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(status), "{arguments:?}\n{out}\n{err}");
    (out, err)
}

/// The last line, without the parts that differ from run to run.
fn last_message(log: &str) -> &str {
    log.lines().last().and_then(|line| line.split_once("] ")).expect(log).1
}

const MANIFESTS: &str = "\
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ports: [{port: 80, nodePort: 30080, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: \"\", port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.0.0.5]}, {addresses: [10.0.0.6]}]
";

fn directory(manifests: &str) -> TempDir {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("all.yaml"), manifests).unwrap();
    directory
}

fn render(directory: &Path, more: &[&str]) -> (String, String) {
    let directory = directory.to_str().unwrap();
    let mut arguments = vec!["render", "--manifests", directory, "--hostname-override=node-1"];
    arguments.extend(more);
    expect(0, &arguments)
}

#[test]
fn help_and_version_are_no_errors() {
    let (help, errors) = expect(0, &["--help"]);
    assert_eq!(errors, "");
    for word in
        ["--config", "--manifests", "--proxy-mode", "--cleanup", "-v, --v <NUMBER>", "render"]
    {
        assert!(help.contains(word), "{word} is not in\n{help}");
    }
    assert_eq!(expect(0, &["--version"]).0, format!("switchyard {}\n", env!("CARGO_PKG_VERSION")));
    assert!(expect(0, &["render", "--help"]).0.contains("--format <FORMAT>"));
}

/// bash reads what is printed for it, and completes a flag and the words that the flag accepts.
#[test]
fn completions_and_manual_are_of_the_flags() {
    let (script, _) = expect(0, &["completions", "bash"]);
    for (words, expected) in [("--proxy-m", "--proxy-mode"), ("--nft-transport ''", "netlink json")]
    {
        let run = "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); \
            _switchyard switchyard \"${COMP_WORDS[-1]}\" \"${COMP_WORDS[-2]}\"; echo \"${COMPREPLY[@]}\"";
        let script = format!("{script}\nCOMP_WORDS=(switchyard {words}); {run}");
        // A file, as an argument of a program is at most 128 KiB long.
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), script).unwrap();
        let output = Command::new("bash").arg(file.path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{output:?}");
    }
    for shell in ["zsh", "fish"] {
        assert!(expect(0, &["completions", shell]).0.contains("nft-transport"));
    }
    let (page, _) = expect(0, &["man"]);
    assert!(page.contains(".TH switchyard 1") && page.contains("Implements Kubernetes Services"));
    assert!(page.contains("\\-\\-proxy\\-mode"), "{page}");
    assert!(expect(1, &["completions", "tcsh"]).1.contains("invalid value 'tcsh'"));
}

#[test]
fn what_is_not_a_flag_is_an_error() {
    for (arguments, message) in [
        (&["--no-such-flag"][..], "unknown flag: --no-such-flag"),
        (&["--no-such-flag=1"], "unknown flag: --no-such-flag"),
        (&["-z"], "unknown flag: -z"),
        (&["--config"], "flag needs an argument: --config"),
        (&["--v=many"], "invalid argument \"many\" for \"-v, --v\" flag: not a whole number"),
        (
            &["--iptables-sync-period=1d"],
            "invalid argument \"1d\" for \"--iptables-sync-period\" flag: \
             time: unknown unit \"d\" in duration \"1d\"",
        ),
        (
            &["--masquerade-all=yes"],
            "invalid argument \"yes\" for \"--masquerade-all\" flag: neither true nor false",
        ),
        (
            &["--nft-transport=pigeon"],
            "invalid argument \"pigeon\" for \"--nft-transport\" flag: \
             must be one of netlink, json",
        ),
        (
            &["--version=v1.2.3"],
            "invalid argument \"v1.2.3\" for \"--version\" flag: must be v1.37.0 with a suffix",
        ),
        (&["nonsense"], "unknown command \"nonsense\""),
        (&["--cleanup", "true"], "unknown command \"true\""),
        (&["explain", "--no-such-flag"], "unknown flag: --no-such-flag"),
        (&["explain", "--cleanup", "a/b"], "unknown flag: --cleanup"),
        (
            &["explain", "a/b", "-o", "yaml"],
            "invalid value 'yaml' for '--output <FORMAT>' [possible values: text, json]",
        ),
        (&["completions"], "the following required arguments were not provided: <SHELL>"),
        (
            &["explain", "--since=-5m"],
            "invalid value '-5m' for '--since <DURATION>': must be greater than or equal to 0",
        ),
        (&["verify", "more"], "unknown command \"more\""),
    ] {
        // No answer of these has it.
        let status = match arguments[0] {
            "explain" => 4,
            "verify" => 3,
            _ => 1,
        };
        let (out, err) = expect(status, arguments);
        assert_eq!(out, "");
        assert!(err.contains("Usage: switchyard"), "{arguments:?}: {err}");
        let is_short = err.lines().count() < 9 && err.contains("\nsee switchyard ");
        assert_eq!(is_short, !err.contains("--masquerade-all"), "{arguments:?}: {err}");
        assert_eq!(is_short, ["explain", "verify", "completions"].contains(&arguments[0]));
        assert_eq!(err.lines().last(), Some(&*format!("Error: {message}")), "{arguments:?}");
    }
}

#[test]
fn versions_have_forms() {
    let version = |arguments: &[&str]| expect(0, arguments).0;
    assert_eq!(version(&["--version=true"]), version(&["--version"]));
    let raw = version(&["--version=raw"]);
    assert!(raw.starts_with("version.Info{Major:\"1\", Minor:\"37\", "), "{raw}");

    let directory = TempDir::new().unwrap();
    let link = directory.path().join("kube-proxy");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_switchyard"), &link).unwrap();
    let output = Command::new(link).arg("--version").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "Kubernetes v1.37.0\n");
}

#[test]
fn the_configuration_is_written() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("written.yaml");
    let to = format!("--write-config-to={}", path.display());
    let arguments = [&*to, "--cluster-cidr=10.0.0.0/8", "--proxy-mode=nftables", "--v=1"];
    let (_, log) = expect(0, &arguments);
    assert_eq!(last_message(&log), format!("\"Wrote configuration\" file={path:?}"));
    assert!(log.contains("] FLAG: --cluster-cidr=\"10.0.0.0/8\"\n"), "{log}");
    assert!(log.contains("] FLAG: --oom-score-adj=\"-999\"\n"), "{log}");
    let written = fs::read_to_string(&path).unwrap();
    assert!(written.contains("\nclusterCIDR: 10.0.0.0/8\n"), "{written}");

    let again = directory.path().join("again.yaml");
    let from = format!("--config={}", path.display());
    expect(0, &[&from, &format!("--write-config-to={}", again.display())]);
    assert_eq!(fs::read_to_string(again).unwrap(), written);

    let absent = directory.path().join("absent.yaml");
    let to = format!("--write-config-to={}", absent.display());
    expect(1, &[&to, "--oom-score-adj", "-1001"]);
    assert!(!absent.exists(), "what is invalid is not written");
    let (_, log) = expect(1, &["--write-config-to=/no/where"]);
    assert!(log.contains("cannot write the configuration to /no/where: No such file"), "{log}");
}

#[test]
fn flags_of_old_releases_are_warned_of() {
    let gate = "--feature-gates=ExperimentalCriticalPodAnnotation=true";
    let directory = directory(MANIFESTS);
    let given = ["--udp-timeout=250ms", "--logtostderr", gate, "--cluster-cidr="];
    let (out, log) = render(directory.path(), &given);
    assert!(out.contains("table ip kube-proxy"), "{out}");
    for word in [
        "--udp-timeout is a flag of old releases",
        "--logtostderr",
        "--cluster-cidr is empty, with which kube-proxy may not start",
        "unrecognized feature gate: ExperimentalCriticalPodAnnotation",
    ] {
        let warned = |line: &str| line.starts_with('W') && line.contains(word);
        assert!(log.lines().any(warned), "{word} is not in\n{log}");
    }
}

#[test]
fn streams_are_split() {
    let directory = TempDir::new().unwrap();
    let to = format!("--write-config-to={}", directory.path().join("written").display());
    let gate = "--feature-gates=LoggingAlphaOptions=true";
    let wrote = |log: &str| log.contains("Wrote configuration");
    for more in [
        &["--log-text-split-stream"][..],
        &["--log-text-split-stream", "--log-text-info-buffer-size=64Ki"],
        &["--log-json-split-stream", "--logging-format=json", "--log-json-info-buffer-size=1Mi"],
    ] {
        let (out, err) = expect(0, &[&[&*to, gate], more].concat());
        assert!(wrote(&out) && err.is_empty(), "{more:?}\n{out}\n{err}");
    }
    // They are those of the other format.
    let (out, err) = expect(0, &[&to, gate, "--log-json-split-stream"]);
    assert!(out.is_empty() && wrote(&err), "{out}\n{err}");
    let (out, err) = expect(1, &[&to, gate, "--log-text-split-stream", "--oom-score-adj=9999"]);
    assert!(!out.contains("failed") && err.contains("command failed"), "{out}\n{err}");
}

#[test]
fn deprecated_flags_are_noted_before_the_log() {
    let directory = TempDir::new().unwrap();
    let to = format!("--write-config-to={}", directory.path().join("written").display());
    let (out, err) = expect(0, &["--healthz_port=10256", &to]);
    assert_eq!(out, "");
    let notice = "Flag --healthz-port has been deprecated, use the address with a port instead";
    assert_eq!(err.lines().next(), Some(notice), "{err}");
    assert!(!expect(0, &["--help"]).0.contains("healthz-port"), "it is hidden");
}

#[test]
fn a_configuration_that_is_no_good_is_logged() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("config.conf");
    let config = format!("--config={}", path.display());
    fs::write(
        &path,
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
         oomScoreAdj: 2000\nclusterCIDR: x\n",
    )
    .unwrap();
    let (_, log) = expect(1, &[&config]);
    assert!(log.starts_with('E'), "{log}");
    assert_eq!(
        last_message(&log),
        "\"command failed\" err=\"failed validate: [\
         KubeProxyConfiguration.KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: 2000: \
         must be within the range [-1000, 1000], \
         KubeProxyConfiguration.DetectLocalConfiguration.ClusterCIDRs[0]: Invalid value: \\\"x\\\": must be a valid CIDR block \
         (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)]\""
    );
    fs::write(&path, "kind: Deployment\napiVersion: apps/v1\n").unwrap();
    let (_, log) = expect(1, &[&config, "--logging-format=json"]);
    let line: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!(
        line["err"],
        format!(
            "failed complete: cannot use the configuration file {}: failed to decode: \
             no kind \"Deployment\" is registered for version \"apps/v1\"",
            path.display()
        )
    );
}

#[test]
fn manifests_are_rendered_in_nfts_syntax_as_configured() {
    let directory = directory(MANIFESTS);
    let render = |arguments: &[&str]| {
        let (out, err) = render(directory.path(), arguments);
        assert_eq!(err, "");
        out
    };
    let usual = render(&["--cluster-cidr=10.0.0.0/16"]);
    for text in [
        "table ip kube-proxy",
        "10.96.0.10",
        "10.0.0.5",
        "10.0.0.6",
        "30080",
        "192.0.2.1",
        "10.0.0.0/16",
        "0x4000",
    ] {
        assert!(usual.contains(text), "{text} is not in\n{usual}");
    }
    // The bit, and nothing else: every rule that tests, sets or clears the mark.
    let other_bit = render(&["--cluster-cidr=10.0.0.0/16", "--iptables-masquerade-bit=5"]);
    assert!(!usual.contains("0x20"), "{usual}");
    assert_eq!(other_bit, usual.replace("0x4000", "0x20"));
    assert_ne!(render(&["--cluster-cidr=10.0.0.0/16", "--masquerade-all"]), usual);
}

#[test]
fn manifests_are_rendered_as_json() {
    let directory = directory(MANIFESTS);
    let (out, err) = render(directory.path(), &["--format=json"]);
    assert_eq!(err, "");
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    let commands = document["nftables"].as_array().unwrap();
    let added =
        |kind: &'static str| commands.iter().filter(move |command| !command["add"][kind].is_null());
    assert!(added("table").any(|command| command["add"]["table"]["name"] == "kube-proxy"), "{out}");
    let elements: Vec<String> = added("element").map(ToString::to_string).collect();
    for text in ["10.96.0.10", "10.0.0.5", "10.0.0.6", "30080"] {
        assert!(elements.iter().any(|element| element.contains(text)), "{text} is not in\n{out}");
    }
}

#[test]
fn algorithms_are_rendered() {
    let asking =
        "metadata: {name: web, namespace: shop, annotations: {switchyard/lb-algorithm: maglev}}";
    let manifests = MANIFESTS.replace("metadata: {name: web, namespace: shop}", asking);
    let directory = directory(&manifests);
    let (out, err) = render(directory.path(), &[]);
    assert!(out.contains("jhash ip saddr . tcp sport mod 1021"), "{out}");
    assert_eq!(err, "");
    let (out, err) = render(directory.path(), &["--format=json"]);
    assert!(out.contains("jhash"), "{out}");
    assert!(err.contains("--format=nft"), "{err}");
    let (out, _) = render(directory.path(), &["--lb-algorithm=round-robin"]);
    assert!(!out.contains("numgen inc"), "the Service asks for another algorithm: {out}");
}

#[test]
fn what_cannot_be_rendered_is_said() {
    let manifests = MANIFESTS.replace("clusterIPs: [10.96.0.10]", "externalIPs: [1.2.3.4.5]");
    let directory = directory(&format!("{manifests}---\nkind: [Service\n"));
    let (out, err) = render(directory.path(), &[]);
    assert!(out.contains("table ip kube-proxy"), "the rest is there: {out}");
    assert!(err.contains("Service shop/web: spec.externalIPs[0]: "), "{err}");
    assert!(err.contains("all.yaml"), "the broken document: {err}");

    assert_eq!(
        last_message(&expect(1, &["render"]).1),
        "\"command failed\" err=\"render needs --manifests DIR\""
    );
    let (_, log) = expect(1, &["render", "--manifests", "/does/not/exist"]);
    assert!(log.contains("/does/not/exist"), "{log}");
}

#[test]
fn explain_answers_from_manifests_by_its_exit_status() {
    let more = "---\napiVersion: v1\nkind: Service\nmetadata: {name: idle, namespace: shop}\n\
                spec: {clusterIP: 10.96.0.11, ports: [{port: 80}]}\n";
    let directory = directory(&(MANIFESTS.to_owned() + more));
    let explain = |status, question: &[&str]| {
        let from =
            ["--manifests", directory.path().to_str().unwrap(), "--hostname-override=node-1"];
        let (out, err) = expect(status, &[&["explain"], question, &from].concat());
        assert_eq!(err, "");
        out
    };
    let out = explain(0, &["shop/web"]);
    assert!(out.starts_with("shop/web is served on node-1 by its 2 endpoints.\n"), "{out}");
    assert!(out.contains("the kernel's rules were not read") && out.contains("nftables"), "{out}");
    let out = explain(0, &["10.0.0.9", "192.0.2.1:30080"]);
    assert!(out.contains("Connections from 10.0.0.9 to 192.0.2.1:30080/tcp (shop/web)"), "{out}");
    assert_eq!(explain(0, &["10.0.0.9 -> 192.0.2.1:30080"]), out);
    let out = explain(1, &["shop/idle"]);
    assert!(out.contains("SWY0101"), "{out}");
    let out = explain(4, &["shop/wed"]);
    assert!(out.contains("did you mean shop/web?"), "{out}");
    let out = explain(1, &["10.96.0.11:80", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["verdict"], "refuses");
    let (_, err) = expect(4, &["explain", "what is this"]);
    assert!(err.starts_with("Error: `what is this` is neither NAMESPACE/NAME"), "{err}");
    let (_, err) = expect(4, &["explain", "shop/web", "--local-socket=/does/not/exist"]);
    assert!(err.contains("cannot reach a running proxy at /does/not/exist"), "{err}");
}

#[test]
fn a_runner_of_commands_writes_their_output_to_a_file() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("log");
    let to_file = format!("--log-file={}", file.display());
    let to_file = to_file.as_str();
    let runner = |flags: &[&str], script: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_switchyard"));
        command.arg0("/go-runner").args(flags).args(["sh", "-c", script]);
        command
    };
    let both = "out\nerr\n";
    for (flags, in_file, out, err) in [
        (&[][..], None, both, ""),
        (&["-redirect-stderr=false"], None, "out\n", "err\n"),
        (&[to_file], Some(both), "", ""),
        (
            &["-also-stdout", "--log-file-size=1", "--flush-interval=5s", to_file],
            Some(both),
            both,
            "",
        ),
        (&[to_file, "--redirect-stderr=false", "--"], Some("out\n"), "", "err\n"),
    ] {
        let output = runner(flags, "echo out; echo err >&2; exit 3").output().unwrap();
        let found = (output.status.code(), &*output.stdout, &*output.stderr);
        assert_eq!(found, (Some(3), out.as_bytes(), err.as_bytes()), "{flags:?}");
        assert_eq!(fs::read_to_string(&file).ok().as_deref(), in_file, "{flags:?}");
        let _ = fs::remove_file(&file);
    }
    let script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let mut command = runner(&[to_file, "--also-stdout"], script);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = [0; 6];
    child.stdout.take().unwrap().read_exact(&mut line).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!((&line, child.wait().unwrap().code()), (b"ready\n", Some(5)));
}
