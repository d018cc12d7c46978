//! The manifests in `e2e/`, the page about the run, and the workflow of the public forge.

use std::{collections::BTreeSet, fs, process::Command};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{ConfigMap, Namespace, Service, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use serde_json::Value;

use super::{cluster::asks_the_port, documents, root};
use crate::deploy::typed;

/// Checks that an object has only fields of its type, with values of the right types.
#[track_caller]
pub fn check_type(object: &Value) {
    match object["kind"].as_str().unwrap() {
        "ClusterRole" => _ = typed::<ClusterRole>(object),
        "ClusterRoleBinding" => _ = typed::<ClusterRoleBinding>(object),
        "ConfigMap" => _ = typed::<ConfigMap>(object),
        "DaemonSet" => _ = typed::<DaemonSet>(object),
        "Deployment" => _ = typed::<Deployment>(object),
        "Namespace" => _ = typed::<Namespace>(object),
        "Service" => _ = typed::<Service>(object),
        "ServiceAccount" => _ = typed::<ServiceAccount>(object),
        kind => panic!("an object of another kind: {kind}"),
    }
}

#[test]
fn manifests_are_what_the_api_server_takes() {
    let mut count = 0;
    for entry in fs::read_dir(root().join("e2e/manifests")).unwrap() {
        let path = entry.unwrap().path();
        for object in documents(&fs::read_to_string(&path).unwrap()) {
            check_type(&object);
            count += 1;
            let pod = &object["spec"]["template"]["spec"];
            if pod.is_null() {
                continue;
            }
            // A selector that does not fit is rejected, and an image without a placeholder is not set.
            let labels = &object["spec"]["template"]["metadata"]["labels"];
            assert_eq!(&object["spec"]["selector"]["matchLabels"], labels, "{path:?}");
            for container in [&pod["containers"], &pod["initContainers"]] {
                for container in container.as_array().into_iter().flatten() {
                    if container["args"][0] == "netexec" {
                        let probe = &container["readinessProbe"]["exec"]["command"];
                        assert_eq!(*probe, asks_the_port(), "{path:?}");
                        assert_eq!(container["args"][1], "--http-port=8080", "{path:?}");
                    }
                    let image = container["image"].as_str().unwrap();
                    assert!(["e2e-image", "proxy-image"].contains(&image), "{path:?}: {image}");
                    assert_eq!(container["imagePullPolicy"], "IfNotPresent", "{path:?}");
                }
            }
            // A server that ends before it has served on would be killed too early.
            let served_on = &pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1];
            if let Some(seconds) = served_on.as_str() {
                let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
                assert!(seconds.parse::<u64>().unwrap() < grace, "{path:?}");
            }
        }
    }
    assert!(count > 18, "only {count} objects");
}

#[test]
fn the_page_lists_every_check() {
    let output = Command::new(root().join("e2e/run.sh")).arg("list").output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    let page = fs::read_to_string(root().join("docs/e2e.md")).unwrap();
    assert!(listed.lines().count() > 20, "{listed}");
    for line in listed.lines() {
        let (name, sentence) = line.split_once('\t').unwrap();
        assert!(page.contains(&format!("| `{name}` | {sentence} |")), "docs/e2e.md lacks {line}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| `") && line.split('|').count() == 4);
    let in_page: BTreeSet<&str> = rows.filter_map(|line| line.split('`').nth(1)).collect();
    let names: BTreeSet<&str> = listed.lines().filter_map(|line| line.split('\t').next()).collect();
    let known = |name: &&str| names.contains(name) || name.contains(char::is_uppercase);
    assert!(in_page.iter().all(known), "{in_page:?}");
}

#[test]
fn the_page_names_every_variable() {
    let page = fs::read_to_string(root().join("docs/e2e.md")).unwrap();
    for file in ["e2e/run.sh", "e2e/kind.sh", "e2e/checks/upstream.sh"] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        for name in text.split("${").skip(1).filter_map(|rest| rest.split([':', '}', '-']).next()) {
            if name.starts_with("E2E_") || name.starts_with("KIND_") {
                assert!(page.contains(&format!("`{name}`")), "docs/e2e.md lacks {name} of {file}");
            }
        }
    }
}

#[test]
fn the_workflow_runs_targets_that_exist() {
    let text = fs::read_to_string(root().join(".github/workflows/ci.yml")).unwrap();
    let workflow = documents(&text).remove(0);
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let mut targets = BTreeSet::new();
    for (name, job) in workflow["jobs"].as_object().unwrap() {
        assert!(job["runs-on"].is_string() && job["timeout-minutes"].is_u64(), "{name}");
        for step in job["steps"].as_array().unwrap() {
            // A tag can be moved; the digest of a commit cannot.
            if let Some(action) = step["uses"].as_str() {
                let (_, version) = action.split_once('@').unwrap();
                let is_commit =
                    version.len() == 40 && version.chars().all(|c| c.is_ascii_hexdigit());
                assert!(is_commit, "{action}");
            } else {
                let commands = step["run"].as_str().unwrap();
                let words: Vec<&str> = commands.split_whitespace().collect();
                for pair in words.windows(2).filter(|pair| pair[0] == "make") {
                    let is_there = makefile.contains(&format!("\n{}:", pair[1]));
                    assert!(is_there, "the Makefile has no {}", pair[1]);
                    targets.insert(pair[1].to_owned());
                }
            }
        }
    }
    let expected = ["test", "e2e-kind"].map(str::to_owned);
    assert_eq!(targets, BTreeSet::from(expected));
}
