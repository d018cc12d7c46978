//! `e2e/run.sh` with a stub in place of kubectl: however a run ends, the original proxy can be put
//! back. And the lists about it agree: checks and variables with the page, workflow with the
//! Makefile.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{ConfigMap, Container, Namespace, Service},
};
use packet_rig::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::deploy::{parse, typed};

const IMAGE: &str = "localhost/switchyard:test";
const SPEC: &str = concat!(
    r#"{"template":{"spec":{"containers":[{"args":["--config=/c"],"image":"kube-proxy:v1.36.2","#,
    r#""name":"kube-proxy","volumeMounts":[{"mountPath":"/c","name":"c"}]}]}}}"#,
);

/// The spec with a kube-proxy that would leave nftables tables in force.
fn old_spec() -> String {
    SPEC.replace("v1.36.2", "v1.30.14-eksbuild.1")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A cluster as `kubectl.sh` keeps it.
struct Cluster(TempDir, String);

impl Cluster {
    fn new() -> Self {
        Self::of(SPEC, "nftables nftables")
    }

    /// Makes a cluster with this spec, and the modes of its proxy and of ours.
    fn of(spec: &str, modes: &str) -> Self {
        let cluster = Self(TempDir::new().unwrap(), spec.to_owned());
        fs::write(cluster.file("spec"), spec).unwrap();
        fs::write(cluster.file("modes"), modes).unwrap();
        cluster
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(root().join("e2e/run.sh"));
        let temporary = self.file("tmp");
        fs::create_dir_all(&temporary).unwrap();
        command.arg(subcommand).env("KUBECTL", root().join("bin/tests/it/kubectl.sh"));
        command.env("STUB", self.0.path()).env("TMPDIR", temporary);
        command.env("KUBECONFIG", "/nonexistent").env("IMAGE", IMAGE).env("E2E_IMAGE", "agnhost");
        command.env("E2E_STATE", self.file("state")).env("E2E_CHECKS", "healthz");
        for (name, seconds) in [("RESTORE", "2"), ("SETTLE", "1"), ("SYNC", "0")] {
            command.env(format!("E2E_{name}_SECONDS"), seconds);
        }
        command.env("E2E_POLL", "0.1").stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts a run, and sends it a signal while it waits for the pods with the new image.
    fn interrupted(&self, signal: Signal) -> Output {
        fs::write(self.file("slow"), "").unwrap();
        let run = self.command("run").spawn().unwrap();
        until("the image is in place", || {
            self.read("spec").contains(IMAGE) && self.read("calls").contains("daemonset/kube-proxy")
        });
        kill_process(Pid::from_raw(run.id().try_into().unwrap()).unwrap(), signal).unwrap();
        fs::remove_file(self.file("slow")).unwrap();
        run.wait_with_output().unwrap()
    }

    /// Checks that the proxy is the original one, to the byte, and that nothing is kept to restore.
    #[track_caller]
    fn assert_as_it_was(&self, output: &Output) {
        assert_eq!(self.read("spec"), self.1, "{}", text(output));
        assert!(
            !self.file("namespace").exists() && !self.file("state").exists(),
            "{}",
            text(output)
        );
    }
}

fn text(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap()
}

#[test]
fn a_run_swaps_the_image_and_puts_the_original_back() {
    let old = old_spec();
    let with_init = old.replace(r#""containers""#, r#""initContainers":[{}],"containers""#);
    let cases = [
        (old.as_str(), "iptables nftables", Some("/spec/template/spec/initContainers")),
        (with_init.as_str(), "ipvs ipvs", Some("/spec/template/spec/initContainers/0")),
        (old.as_str(), "ipvs iptables", None),
        (old.as_str(), "nftables nftables", None),
        (SPEC, "iptables nftables", None),
    ];
    let check = |(spec, modes, cleaned_up): (&str, &str, Option<&str>)| {
        let cluster = Cluster::of(spec, modes);
        let output = cluster.command("run").output().unwrap();
        let text = text(&output);
        let swap =
            text.lines().find(|line| line.starts_with("swap ")).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(swap.split_whitespace().collect::<Vec<_>>(), ["swap", "-", "ok", "ok"]);
        let calls = cluster.read("calls");
        assert!(calls.contains(IMAGE));
        let patches = calls.lines().filter_map(|call| Some(call.split_once("--patch=")?.1));
        let operations =
            patches.flat_map(|patch| serde_json::from_str::<Vec<Value>>(patch).unwrap());
        let path = |operation: &Value| operation["path"].as_str().unwrap().to_owned();
        let init: Vec<Value> = operations.filter(|o| path(o).contains("initContainers")).collect();
        assert_eq!(
            init.iter().map(path).collect::<Vec<_>>(),
            Vec::from_iter(cleaned_up),
            "{calls}"
        );
        for value in init.iter().map(|operation| &operation["value"]) {
            let container: Container = typed(value.get(0).unwrap_or(value));
            assert_eq!(container.image.unwrap(), IMAGE);
            assert_eq!(container.args.unwrap(), ["--config=/c", "--cleanup"]);
            assert_eq!(container.volume_mounts.unwrap()[0].name, "c");
        }
        cluster.assert_as_it_was(&output);
    };
    // Most of a run is waiting.
    thread::scope(|scope| cases.into_iter().for_each(|case| _ = scope.spawn(move || check(case))));
}

#[test]
fn an_interrupted_run_puts_the_original_back() {
    let cluster = Cluster::new();
    let output = cluster.interrupted(Signal::TERM);
    assert_eq!(output.status.code(), Some(143), "{}", text(&output));
    cluster.assert_as_it_was(&output);
}

#[test]
fn a_killed_run_is_put_back_by_restore_and_by_the_next_run() {
    // A run that was killed early does not know the modes.
    for (subcommand, spec) in [("restore", &*old_spec()), ("run", SPEC)] {
        let cluster = Cluster::of(spec, "nftables nftables");
        cluster.interrupted(Signal::KILL);
        assert!(cluster.read("spec").contains(IMAGE));
        // While the API server is away, what is written down stays.
        fs::write(cluster.file("away"), "").unwrap();
        let output = cluster.command(subcommand).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains("make e2e-restore KUBECONFIG="), "{}", text(&output));
        fs::remove_file(cluster.file("away")).unwrap();
        cluster.assert_as_it_was(&cluster.command(subcommand).output().unwrap());
        assert_eq!(cluster.read("calls").contains("switchyard-cleanup"), spec != SPEC);
    }
}

#[test]
fn manifests_have_the_fields_of_their_types() {
    for entry in fs::read_dir(root().join("e2e/manifests")).unwrap() {
        for object in parse(&fs::read_to_string(entry.unwrap().path()).unwrap()) {
            match object["kind"].as_str().unwrap() {
                "ConfigMap" => _ = typed::<ConfigMap>(&object),
                "DaemonSet" => _ = typed::<DaemonSet>(&object),
                "Deployment" => _ = typed::<Deployment>(&object),
                "Namespace" => _ = typed::<Namespace>(&object),
                "Service" => _ = typed::<Service>(&object),
                kind => panic!("an object of another kind: {kind}"),
            }
        }
    }
}

#[test]
fn the_page_lists_every_check_and_variable() {
    let page = fs::read_to_string(root().join("docs/e2e.md")).unwrap();
    let output = Command::new(root().join("e2e/run.sh")).arg("list").output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    assert!(listed.lines().count() > 20, "{listed}");
    for line in listed.lines() {
        let (name, sentence) = line.split_once('\t').unwrap();
        assert!(page.contains(&format!("| `{name}` | {sentence} |")), "docs/e2e.md lacks {line}");
    }
    for file in ["e2e/run.sh", "e2e/kind.sh", "e2e/checks/upstream.sh"] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        for name in text.split("${").skip(1).filter_map(|rest| rest.split([':', '}', '-']).next()) {
            let is_ours = name.starts_with("E2E_") || name.starts_with("KIND_");
            assert!(!is_ours || page.contains(&format!("`{name}`")), "docs/e2e.md lacks {name}");
        }
    }
}

#[test]
fn the_workflow_runs_targets_that_exist() {
    let workflow = fs::read_to_string(root().join(".github/workflows/ci.yml")).unwrap();
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let runs = workflow.lines().filter_map(|line| line.trim().strip_prefix("- run: make "));
    let targets: BTreeSet<&str> = runs.collect();
    assert_eq!(targets, BTreeSet::from(["test", "e2e-kind", "status-picture"]));
    for target in targets {
        assert!(makefile.contains(&format!("\n{target}:")), "the Makefile has no {target}");
    }
    // A tag can be moved; the digest of a commit cannot.
    for action in workflow.lines().filter_map(|line| line.trim().strip_prefix("- uses: ")) {
        let commit = action.split(['@', ' ']).nth(1).unwrap();
        assert!(commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit()), "{action}");
    }
}
