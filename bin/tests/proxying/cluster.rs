//! From an API server, as a pod of kubeadm's DaemonSet would be started.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::Stdio,
};

use api_standin::{Resource, load};
use tempfile::TempDir;

use crate::{
    namespace::{HEALTH, Namespace, Program},
    standin::{Cluster, NODE, run},
};

#[test]
fn an_api_server_is_followed() {
    run(|namespace| async move { follows_the_server(&namespace).await });
}

async fn follows_the_server(namespace: &Namespace) {
    let Cluster { server, directory } = Cluster::start().await;
    server.store().apply(load::node(NODE)).unwrap();
    load::fill(server.store(), 3, 2).unwrap();

    let kubeconfig = directory.path().join("kubeconfig");
    let config = include_str!("../fixtures/kubeadm.yaml")
        .replace("/var/lib/kube-proxy/kubeconfig.conf", kubeconfig.to_str().unwrap())
        // The limit of connections belongs to the machine, not to the namespace.
        .replace("maxPerCore: null", "maxPerCore: 0");
    let path = directory.path().join("config.conf");
    fs::write(&path, config).unwrap();
    let config = format!("--config={}", path.display());
    let program = Program::start(namespace, &[&config, &format!("--hostname-override={NODE}")]);

    namespace.wait(HEALTH, "/healthz", |status, _| status == 200);
    namespace.wait_for_service_ports(3);
    let first = load::cluster_ip(0).to_string();
    let rules = || namespace.list("table ip kube-proxy");
    assert!(rules().contains(&first), "{}", rules());
    assert!(server.user_agent().is_some_and(|agent| agent.starts_with("switchyard/")));

    server.store().apply(load::service(3)).unwrap();
    namespace.wait_for_service_ports(4);
    let name = load::service(0)["metadata"]["name"].as_str().unwrap().to_owned();
    let spaces = load::service(0)["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
    assert!(server.store().delete(Resource::Services, &spaces, &name));
    namespace.wait_for_service_ports(3);
    assert!(!rules().contains(&format!("{first} ")), "{}", rules());

    let mut node = load::node(NODE);
    node["spec"]["taints"] = serde_json::json!([{
        "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule",
    }]);
    server.store().apply(node).unwrap();
    let body = namespace.wait(HEALTH, "/healthz", |status, _| status == 503);
    assert!(body.contains("\"nodeEligible\":false,\"healthy\":true"), "{body}");

    let (signal, log) = program.terminate();
    assert_eq!(signal, Some(15), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn no_way_to_a_server_is_an_error() {
    let namespace = Namespace::new();
    let output = namespace.switchyard(&["--conntrack-max-per-core=0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("neither a kubeconfig nor a server is given"), "{log}");
    assert_eq!(namespace.list("tables"), "", "nothing was touched");
}

#[test]
fn authorities_are_needed_only_for_certificates_that_are_checked() {
    let directory = TempDir::new().unwrap();
    let kubeconfig = directory.path().join("kubeconfig.conf");
    let log = |cluster: &str| {
        let text = format!(
            "clusters: [{{name: c, cluster: {{{cluster}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             users: [{{name: u, user: {{token: secret}}}}]\n\
             current-context: c\n"
        );
        fs::write(&kubeconfig, text).unwrap();
        let namespace = Namespace::new();
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        // As in an image that has no one's certificates.
        let mut command = namespace.switchyard(&[&kubeconfig, "--conntrack-max-per-core=0"]);
        command.env("SSL_CERT_FILE", "/dev/null").env("SSL_CERT_DIR", "/nonexistent");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let found = lines.find(|line| line.contains("Connection refused") || line.contains(" CA "));
        child.kill().unwrap();
        child.wait().unwrap();
        found.unwrap()
    };
    for cluster in [
        "server: \"http://127.0.0.1:1\"",
        "server: \"https://127.0.0.1:1\", insecure-skip-tls-verify: true",
    ] {
        assert!(log(cluster).contains("Connection refused"), "{cluster}");
    }
    assert!(log("server: \"https://127.0.0.1:1\"").contains("No CA certificates"));
}
