//! Kubernetes Events, as an API server gets them.

use std::{fs, net::TcpListener, path::Path};

use api_standin::load;

use crate::{
    namespace::{HEALTH, METRICS, Program},
    standin::{Cluster, NODE, run},
};

#[test]
fn starts_and_ports_in_use_are_events() {
    run(|namespace| async move {
        let cluster = Cluster::start().await;
        let mut service = load::service(1);
        service["spec"]["type"] = "LoadBalancer".into();
        service["spec"]["externalTrafficPolicy"] = "Local".into();
        service["spec"]["healthCheckNodePort"] = 31000.into();
        let name = service["metadata"]["name"].as_str().unwrap().to_owned();
        cluster.server.store().apply(service).unwrap();
        let _blocker = TcpListener::bind("192.0.2.1:31000").unwrap();

        let arguments = cluster.arguments();
        let program = Program::start(&namespace, &[&arguments[0], &arguments[1], &arguments[2]]);
        let starting = cluster.event("Starting", "").await;
        assert_eq!(starting["type"], "Normal");
        assert_eq!(starting["reportingController"], "kube-proxy");
        assert_eq!(starting["metadata"]["namespace"], "default");
        assert_eq!(starting["regarding"]["kind"], "Node");
        assert_eq!(starting["regarding"]["name"], NODE);

        // Before the Node was known, it may have been tried on all addresses.
        let failed = cluster.event("FailedToStartServiceHealthcheck", "192.0.2.1").await;
        assert_eq!(failed["type"], "Warning");
        assert_eq!(failed["metadata"]["namespace"], load::NAMESPACE);
        assert_eq!(failed["regarding"]["name"], name.as_str());
        let note = failed["note"].as_str().unwrap();
        let expected = format!(
            "node {NODE} failed to start healthcheck \"{}/{name}\" on 192.0.2.1:31000: \
             Address already in use (os error 98)",
            load::NAMESPACE
        );
        assert_eq!(note, expected);

        // The watches live, and the health server knows.
        let body = namespace.wait(HEALTH, "/healthz", |status, _| status == 200);
        assert!(!body.contains("silentWatches"), "{body}");
        namespace.wait(METRICS, "/metrics", |_, text| {
            text.contains("switchyard_watch_silence_seconds{kind=\"EndpointSlice\"} ")
        });
        let (_, log) = program.terminate();
        assert!(log.contains("Failed to start healthcheck"), "{log}");
    });
}

#[test]
fn another_mode_than_ipvs_is_an_event() {
    if Path::new("/proc/net/ip_vs").exists() {
        // Then there is nothing to stand in for.
        return;
    }
    run(|namespace| async move {
        let cluster = Cluster::start().await;
        let arguments = cluster.arguments();
        let arguments = [&*arguments[0], &arguments[1], &arguments[2], "--proxy-mode=ipvs"];
        let program = Program::start(&namespace, &arguments);
        let replaced = cluster.event("ProxyModeReplaced", "using iptables").await;
        assert_eq!(replaced["type"], "Warning");
        assert_eq!(replaced["regarding"]["name"], NODE);
        let note = replaced["note"].as_str().unwrap();
        assert!(note.starts_with("ipvs cannot be used on this node: "), "{note}");
        let (_, log) = program.terminate();
        let warned = |line: &str| line.starts_with('W') && line.contains(note);
        assert!(log.lines().any(warned), "{log}");
    });
}

#[test]
fn why_it_ends_is_an_event() {
    run(|namespace| async move {
        let cluster = Cluster::start().await;
        let _blocker = TcpListener::bind(METRICS).unwrap();
        let config = cluster.directory.path().join("config");
        let kubeconfig = cluster.directory.path().join("kubeconfig");
        let text = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
             bindAddressHardFail: true\nhostnameOverride: {NODE}\nconntrack: {{maxPerCore: 0}}\n\
             clientConnection: {{kubeconfig: {}}}\n",
            kubeconfig.display()
        );
        fs::write(&config, text).unwrap();
        let config = format!("--config={}", config.display());
        let output = namespace.switchyard(&[&config]).output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{log}");
        let event = cluster.event("FailedToStartMetricServer", "").await;
        assert_eq!(event["regarding"]["kind"], "Node");
        let note = event["note"].as_str().unwrap();
        assert!(note.starts_with("cannot serve metrics: Address already in use"), "{note}");
    });
}
