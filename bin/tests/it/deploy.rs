//! The manifests in `deploy/`: that they are what the API server takes, fit together, and ask for
//! what kube-proxy asks for; and that the program takes the configuration in them.
//!
//! The output of kustomize is checked where `kubectl` is installed; [`super::chart`] has the chart.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Container, PodSpec, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule},
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::config::Kubeconfig;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Of kubeadm's DaemonSet.
const ARGUMENTS: [&str; 2] =
    ["--config=/var/lib/kube-proxy/config.conf", "--hostname-override=$(NODE_NAME)"];

pub fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

pub fn parse(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

pub fn read(path: &str) -> Vec<Value> {
    parse(&fs::read_to_string(deploy(path)).unwrap())
}

/// The only object of that type, if there is one. Nothing of it may be unknown to the API.
pub fn one<T: Serialize + DeserializeOwned>(objects: &[Value], kind: &str) -> Option<T> {
    let found: Vec<&Value> = objects.iter().filter(|object| object["kind"] == kind).collect();
    assert!(found.len() <= 1, "{found:?}");
    found.first().map(|object| typed(object))
}

/// The object in its type. Nothing of it may be unknown to the API.
pub fn typed<T: Serialize + DeserializeOwned>(object: &Value) -> T {
    let typed: T = serde_json::from_value(object.clone()).unwrap();
    let mut again = serde_json::to_value(&typed).unwrap();
    // Of a volume claim that no one made.
    strip_empty(&mut again);
    let mut given = object.clone();
    strip_empty(&mut given);
    assert_eq!(again, given, "something in it is no field of a {}", object["kind"]);
    typed
}

/// Removes empty maps, which need not be written.
fn strip_empty(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(strip_empty);
            fields.retain(|_, value| *value != json!({}));
        }
        Value::Array(items) => items.iter_mut().for_each(strip_empty),
        _ => {}
    }
}

/// The allowed verbs for each API group and resource.
fn allowed(rules: &[PolicyRule]) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut allowed = BTreeMap::new();
    for rule in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                let verbs = rule.verbs.iter().cloned().collect();
                let before = allowed.insert((group.clone(), resource.clone()), verbs);
                assert_eq!(before, None, "{group}/{resource} is there twice");
            }
        }
    }
    allowed
}

/// The rights that the ClusterRole `system:node-proxier` of every cluster allows.
fn node_proxier() -> BTreeMap<(String, String), BTreeSet<String>> {
    [
        ("", "services", "list watch"),
        ("", "endpoints", "list watch"),
        ("", "nodes", "get list watch"),
        ("discovery.k8s.io", "endpointslices", "list watch"),
        ("networking.k8s.io", "servicecidrs", "list watch"),
        ("", "events", "create patch update"),
        ("events.k8s.io", "events", "create patch update"),
    ]
    .map(|(group, resource, verbs)| {
        ((group.into(), resource.into()), verbs.split(' ').map(Into::into).collect())
    })
    .into()
}

/// Checks everything that would be installed together.
#[track_caller]
pub fn check(objects: &[Value]) {
    for object in objects.iter().filter(|object| object["kind"].as_str().is_none_or(is_namespaced))
    {
        assert_eq!(object["metadata"]["namespace"], "kube-system", "{object}");
    }
    let daemon_set: DaemonSet = one(objects, "DaemonSet").expect("a DaemonSet");
    let config_map: Option<ConfigMap> = one(objects, "ConfigMap");
    let account: Option<ServiceAccount> = one(objects, "ServiceAccount");
    check_rights(objects, account.as_ref());

    let spec = daemon_set.spec.unwrap();
    let selector = spec.selector.match_labels.unwrap();
    let labels = spec.template.metadata.unwrap().labels.unwrap();
    assert!(!selector.is_empty());
    assert!(selector.iter().all(|(name, value)| labels.get(name) == Some(value)), "{selector:?}");
    let pod = spec.template.spec.unwrap();
    // What is not among the objects is kubeadm's.
    let name = account.map_or("kube-proxy".to_owned(), |it| it.metadata.name.unwrap());
    assert_eq!(pod.service_account_name.as_deref(), Some(&*name));
    let name = config_map.as_ref().map_or("kube-proxy", |it| it.metadata.name.as_ref().unwrap());
    let volumes = pod.volumes.as_ref().unwrap();
    let config = volumes.iter().find(|volume| volume.name == "config").unwrap();
    assert_eq!(config.config_map.as_ref().unwrap().name, name);
    check_pod(&pod);
    if let Some(config_map) = config_map {
        check_config(&config_map);
    }
}

fn is_namespaced(kind: &str) -> bool {
    !kind.starts_with("Cluster")
}

fn check_rights(objects: &[Value], account: Option<&ServiceAccount>) {
    let role: Option<ClusterRole> = one(objects, "ClusterRole");
    let binding: Option<ClusterRoleBinding> = one(objects, "ClusterRoleBinding");
    let Some(account) = account else {
        assert!(role.is_none() && binding.is_none(), "kubeadm's account has its rights");
        return;
    };
    let (role, binding) = (role.unwrap(), binding.unwrap());
    assert_eq!(allowed(&role.rules.unwrap()), node_proxier());
    assert_eq!(binding.role_ref.kind, "ClusterRole");
    assert_eq!(Some(binding.role_ref.name), role.metadata.name);
    let subjects = binding.subjects.unwrap();
    assert_eq!(subjects.len(), 1);
    assert_eq!(subjects[0].kind, "ServiceAccount");
    assert_eq!(Some(&subjects[0].name), account.metadata.name.as_ref());
    assert_eq!(subjects[0].namespace, account.metadata.namespace);
}

fn check_pod(pod: &PodSpec) {
    assert_eq!(pod.host_network, Some(true));
    assert_eq!(pod.priority_class_name.as_deref(), Some("system-node-critical"));
    assert_eq!(pod.node_selector.as_ref().unwrap()["kubernetes.io/os"], "linux");
    let tolerations = pod.tolerations.as_ref().unwrap();
    assert!(tolerations.iter().any(|one| one.operator.as_deref() == Some("Exists")
        && one.key.is_none()
        && one.effect.is_none()));

    let all = pod.init_containers.iter().flatten().chain(&pod.containers);
    all.for_each(|container| check_container(container, pod));
    let (proxy, others) = pod.containers.split_first().unwrap();
    assert!(others.is_empty());
    assert!(!proxy.args.as_ref().unwrap().iter().any(|argument| argument == "--init-only"));
    for init in pod.init_containers.iter().flatten() {
        assert!(init.args.as_ref().unwrap().iter().any(|argument| argument == "--init-only"));
        assert_eq!(init.image, proxy.image);
        // It runs the same programs, and serves no socket.
        let mut mounts = proxy.volume_mounts.clone().unwrap();
        mounts.retain(|mount| mount.name != "run");
        assert_eq!(init.volume_mounts, Some(mounts));
    }
    // A rollout goes on when a pod is ready, and must not end because a node is being removed.
    for (probe, path) in [(&proxy.liveness_probe, "/livez"), (&proxy.readiness_probe, "/readyz")] {
        let get = probe.as_ref().unwrap().http_get.as_ref().unwrap();
        assert_eq!((get.path.as_deref(), &get.port), (Some(path), &IntOrString::Int(10256)));
    }
    let context = proxy.security_context.as_ref().unwrap();
    let mounts: BTreeMap<&str, bool> = proxy
        .volume_mounts
        .iter()
        .flatten()
        .map(|mount| (&*mount.mount_path, mount.read_only.unwrap_or_default()))
        .collect();
    if context.privileged == Some(true) {
        // As kubeadm has them.
        assert_eq!(mounts.get("/run/xtables.lock"), Some(&false));
        assert_eq!(mounts.get("/lib/modules"), Some(&true));
        let lock = pod.volumes.iter().flatten().filter_map(|volume| volume.host_path.as_ref());
        let lock = lock.into_iter().find(|host| host.path == "/run/xtables.lock").unwrap();
        assert_eq!(lock.type_.as_deref(), Some("FileOrCreate"));
    } else {
        assert_eq!(context.run_as_non_root, Some(true));
        assert_ne!(context.run_as_user.unwrap(), 0);
        assert_eq!(
            context.allow_privilege_escalation,
            Some(true),
            "or exec removes what the file has"
        );
        let capabilities = context.capabilities.as_ref().unwrap();
        assert_eq!(capabilities.drop.as_deref(), Some(&["ALL".to_owned()][..]));
        assert_eq!(capabilities.add.as_deref(), Some(&["NET_ADMIN".to_owned()][..]));
    }
}

fn check_container(container: &Container, pod: &PodSpec) {
    assert_eq!(container.command.as_deref(), Some(&["/usr/local/bin/kube-proxy".to_owned()][..]));
    let arguments = container.args.as_ref().unwrap();
    assert_eq!(arguments[..2], ARGUMENTS);
    let mut program = Command::new(env!("CARGO_BIN_EXE_switchyard"));
    assert!(program.args(arguments).arg("--version").status().unwrap().success());
    let node_name = container.env.iter().flatten().find(|env| env.name == "NODE_NAME").unwrap();
    let from = node_name.value_from.as_ref().unwrap().field_ref.as_ref().unwrap();
    assert_eq!(from.field_path, "spec.nodeName");
    assert_eq!(container.security_context.as_ref().unwrap().read_only_root_filesystem, Some(true));
    let volumes: BTreeSet<&str> =
        pod.volumes.iter().flatten().map(|volume| &*volume.name).collect();
    for mount in container.volume_mounts.iter().flatten() {
        assert!(volumes.contains(&*mount.name), "no volume {}", mount.name);
    }
    let config = container.volume_mounts.iter().flatten().find(|mount| mount.name == "config");
    assert_eq!(config.unwrap().mount_path, "/var/lib/kube-proxy");
}

fn check_config(config_map: &ConfigMap) {
    let data = config_map.data.as_ref().unwrap();
    let written = accepted(&data["config.conf"]);
    let path = written["clientConnection"]["kubeconfig"].as_str().unwrap();
    let key = path.strip_prefix("/var/lib/kube-proxy/").unwrap();
    let kubeconfig = Kubeconfig::from_yaml(&data[key]).unwrap();
    let current = kubeconfig.current_context.unwrap();
    let context = kubeconfig.contexts.iter().find(|context| context.name == current).unwrap();
    let context = context.context.as_ref().unwrap();
    let cluster = kubeconfig.clusters.iter().find(|cluster| cluster.name == context.cluster);
    let cluster = cluster.unwrap().cluster.as_ref().unwrap();
    assert!(cluster.server.as_ref().unwrap().starts_with("https://"));
    let user = kubeconfig.auth_infos.iter().find(|user| Some(&user.name) == context.user.as_ref());
    let user = user.unwrap().auth_info.as_ref().unwrap();
    let account = "/var/run/secrets/kubernetes.io/serviceaccount/";
    assert_eq!(user.token_file, Some(format!("{account}token")));
    assert_eq!(cluster.certificate_authority, Some(format!("{account}ca.crt")));
}

/// The configuration with all defaults, if the program takes it without a warning.
#[track_caller]
pub fn accepted(config: &str) -> Value {
    let directory = TempDir::new().unwrap();
    let (given, written) = (directory.path().join("config.conf"), directory.path().join("written"));
    fs::write(&given, config).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_switchyard"))
        .arg(format!("--config={}", given.display()))
        .arg(format!("--write-config-to={}", written.display()))
        .arg("--hostname-override=node-1")
        .output()
        .unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{log}");
    assert!(!log.lines().any(|line| line.starts_with(['W', 'E'])), "{log}");
    parse(&fs::read_to_string(written).unwrap()).remove(0)
}

#[test]
fn the_plain_manifests_fit_together() {
    let objects: Vec<Value> = ["base/rbac.yaml", "base/config.yaml", "base/daemonset.yaml"]
        .into_iter()
        .flat_map(read)
        .collect();
    check(&objects);
}

#[test]
fn kustomizations_name_what_is_there() {
    for directory in ["base", "overlays/kubeadm", "overlays/monitoring", "overlays/privileged"] {
        let kustomization = read(&format!("{directory}/kustomization.yaml")).remove(0);
        for resource in kustomization["resources"].as_array().unwrap() {
            let path = deploy(directory).join(resource.as_str().unwrap());
            assert!(path.exists(), "{}", path.display());
        }
        for patch in kustomization["patches"].as_array().into_iter().flatten() {
            assert_eq!(parse(patch["patch"].as_str().unwrap()).len(), 1);
        }
    }
}

/// The output of a program that renders, if it is installed.
pub fn rendered(program: &str, arguments: &[&str]) -> Option<Vec<Value>> {
    let Ok(Output { status, stdout, stderr }) = Command::new(program).args(arguments).output()
    else {
        packet_rig::skipped(&format!("{program} is not installed"));
        return None;
    };
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    Some(parse(&String::from_utf8(stdout).unwrap()))
}

#[test]
fn what_kustomize_makes_fits_together() {
    for directory in ["base", "overlays/kubeadm", "overlays/monitoring", "overlays/privileged"] {
        let path = deploy(directory);
        let Some(objects) = rendered("kubectl", &["kustomize", path.to_str().unwrap()]) else {
            return;
        };
        check(&objects);
    }
}
