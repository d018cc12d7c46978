//! `deploy/kubectl-switchyard` with a stub in place of kubectl.

use std::{env, fs, os::unix::fs::PermissionsExt, process::Command};

use tempfile::TempDir;

use super::deploy::deploy;

/// A pod that is not being deleted, as kubectl prints it: with a blank before the time it lacks.
const POD: &str = "kube-system switchyard-x7 \n";
/// Notes its arguments, one a line, and answers with the file `pods`.
const KUBECTL: &str = r#"#!/bin/sh
for argument; do printf '%s\n' "$argument"; done >"$STUB/$1"
case $1 in
    get) cat "$STUB/pods" ;;
    exec) echo "an answer"; exit 5 ;;
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
    let pods = &[ending, POD].concat();
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
    let asked = ["doctor", "--context", "a b", "--node=node-1"];
    let (_, _, calls) = plugin(pods, &asked);
    assert!(calls.iter().all(|call| call.contains(&"--context=a b".to_owned())), "{calls:?}");
    assert_eq!(calls[1].last().unwrap(), "doctor");
}

#[test]
fn the_plugin_runs_nothing_else() {
    let no_pod = "no pod with app.kubernetes.io/name=switchyard runs on the node node-1\n";
    for (pods, arguments, expected) in [
        ("", &["doctor", "--node", "node-1"][..], no_pod),
        (POD, &["doctor"], "usage: "),
        (POD, &["doctor", "--node"], "usage: "),
        (POD, &["--cleanup", "--node", "node-1"], "usage: "),
        (POD, &[], "usage: "),
    ] {
        let (status, text, [_, exec]) = plugin(pods, arguments);
        assert!(
            status == 4 && exec.is_empty() && text.starts_with(expected),
            "{arguments:?} {text}"
        );
    }
}
