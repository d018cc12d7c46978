//! `deploy/kubectl-switchyard` with a stub in place of kubectl.

use std::{env, fs, os::unix::fs::PermissionsExt, process::Command};

use tempfile::TempDir;

use super::deploy::deploy;

/// A pod that is not being deleted, as kubectl prints it: with a blank before the time it lacks.
const POD: &str = "kube-system switchyard-x7 \n";
/// The pod of kubeadm's DaemonSet, for the stub.
const KUBEADM: &str = "kubeadm: kube-system kube-proxy-x7 \n";
/// Notes its arguments, one a line, and answers with those lines of the file `pods` that have the
/// labels.
const KUBECTL: &str = r#"#!/bin/sh
for argument; do printf '%s\n' "$argument"; done >"$STUB/$1"
case $1 in
    get) case "$*" in
        *k8s-app=kube-proxy*) sed -n 's/^kubeadm: //p' "$STUB/pods" ;;
        *) sed '/^kubeadm: /d' "$STUB/pods" ;;
    esac ;;
    exec) case "$*" in
        *genuine*) exit 126 ;;
        *--version) exit 0 ;;
        *) echo "an answer"; exit 5 ;;
    esac ;;
esac
"#;

/// Runs the plugin where these pods are on the node: status, output, and the calls `get` and `exec`
/// of kubectl.
fn plugin(pods: &str, arguments: &[&str]) -> (i32, String, [Vec<String>; 2]) {
    let stub = TempDir::new().unwrap();
    let kubectl = stub.path().join("kubectl");
    fs::write(&kubectl, KUBECTL).unwrap();
    fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(stub.path().join("pods"), pods).unwrap();
    let path = format!("{}:{}", stub.path().display(), env::var("PATH").unwrap());
    let mut command = Command::new(deploy("kubectl-switchyard"));
    command.args(arguments).env("PATH", path).env("STUB", stub.path());
    let output = command.env_remove("SWITCHYARD_SELECTOR").output().unwrap();
    let calls = ["get", "exec"].map(|call| {
        let noted = fs::read_to_string(stub.path().join(call)).unwrap_or_default();
        noted.lines().map(str::to_owned).collect()
    });
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap(), calls)
}

#[test]
fn the_plugin_passes_arguments_and_status_through() {
    let ending = "kube-system switchyard-w6 2026-01-01T00:00:00Z\n";
    let pods = &[ending, POD, KUBEADM].concat();
    let asked = ["explain", "10.0.0.1 -> 10.96.0.1:80", "", "--node", "node-1", "-o", "json"];
    let (status, text, [get, exec]) = plugin(pods, &asked);
    assert_eq!((status, text.as_str()), (5, "an answer\n"));
    assert!(get.contains(&"app.kubernetes.io/name=switchyard".to_owned()), "{get:?}");
    assert!(get.contains(&"spec.nodeName=node-1,status.phase=Running".to_owned()), "{get:?}");
    let pod = ["exec", "--quiet", "--namespace", "kube-system", "switchyard-x7", "--"];
    let command = ["switchyard", "explain", "10.0.0.1 -> 10.96.0.1:80", "", "-o", "json"];
    assert_eq!(exec, [&pod[..], &command[..]].concat());
    let (status, _, [_, exec]) = plugin(pods, &["--node=node-1", "top"]);
    assert_eq!((status, exec.last().unwrap().as_str()), (5, "top"));
    assert!(!exec.contains(&"--tty".to_owned()), "the output is no terminal");
    let asked = ["doctor", "--help", "--context", "a b", "--node=node-1"];
    let (_, _, calls) = plugin(&[ending, KUBEADM].concat(), &asked);
    assert!(calls.iter().all(|call| call.contains(&"--context=a b".to_owned())), "{calls:?}");
    assert!(
        calls[1].ends_with(
            &["kube-proxy-x7", "--", "switchyard", "doctor", "--help"].map(str::to_owned)
        )
    );
}

#[test]
fn the_plugin_runs_nothing_else() {
    let no_pod = "no pod with app.kubernetes.io/name=switchyard or k8s-app=kube-proxy runs on the \
                  node node-1; name others by SWITCHYARD_SELECTOR\n";
    for (pods, arguments, expected) in [
        ("", &["doctor", "--node", "node-1"][..], (4, no_pod)),
        (POD, &["doctor"], (4, "usage: ")),
        (POD, &["doctor", "--node"], (4, "usage: ")),
        (POD, &["--cleanup", "--node", "node-1"], (4, "usage: ")),
        (POD, &[], (4, "usage: ")),
        (POD, &["--help"], (0, "usage: ")),
        (POD, &["explain", "-h"], (0, "usage: ")),
    ] {
        let (status, text, [_, exec]) = plugin(pods, arguments);
        assert!(
            status == expected.0 && exec.is_empty() && text.starts_with(expected.1),
            "{arguments:?} {text}"
        );
    }
    let pod = "kubeadm: kube-system genuine \n";
    let (status, text, _) = plugin(pod, &["doctor", "--node", "node-1"]);
    let expected = "the pod genuine on the node node-1 does not run switchyard\n";
    assert_eq!((status, text.as_str()), (4, expected));
}
