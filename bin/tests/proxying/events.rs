//! Kubernetes Events, as an API server gets them.

use std::{fs, net::TcpListener, path::Path};

use api_standin::load;
use serde_json::{Value, json};

use crate::{
    namespace::{METRICS, Program, put_program},
    standin::{Cluster, NODE, run},
};

/// The Event without what no two have in common. Its name starts as that of what it is about.
fn without_times(mut event: Value, about: &str) -> Value {
    let name = event["metadata"]["name"].take();
    let (start, digits) = name.as_str().unwrap().rsplit_once('.').unwrap();
    assert!(start == about && u64::from_str_radix(digits, 16).is_ok(), "{name}");
    assert!(event["eventTime"].as_str().unwrap().ends_with('Z'), "{event}");
    event["metadata"].as_object_mut().unwrap().remove("name");
    event.as_object_mut().unwrap().remove("eventTime");
    event
}

#[test]
fn starts_and_ports_in_use_are_events() {
    run(|namespace| async move {
        let cluster = Cluster::start().await;
        let mut service = load::service(1);
        service["metadata"]["uid"] = "5e7b1ce5".into();
        service["spec"]["type"] = "LoadBalancer".into();
        service["spec"]["externalTrafficPolicy"] = "Local".into();
        service["spec"]["healthCheckNodePort"] = 31000.into();
        let name = service["metadata"]["name"].as_str().unwrap().to_owned();
        cluster.server.store().apply(service);
        let _blocker = TcpListener::bind("192.0.2.1:31000").unwrap();

        let program = cluster.run_program(&namespace, &[]);
        let starting = without_times(cluster.event("Starting", "").await, NODE);
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let instance = format!("kube-proxy-{}", host.trim());
        assert_eq!(
            starting,
            json!({
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                // A genuine server adds the namespace of the request: `default`.
                "metadata": {},
                "reportingController": "kube-proxy",
                "reportingInstance": instance,
                "type": "Normal",
                "reason": "Starting",
                "action": "StartKubeProxy",
                "regarding": {"apiVersion": "v1", "kind": "Node", "name": NODE},
            })
        );

        let failed = cluster.event("FailedToStartServiceHealthcheck", "0.0.0.0").await;
        let note = format!(
            "node {NODE} failed to start healthcheck \"{}/{name}\" on 0.0.0.0:31000: \
             Address already in use (os error 98)",
            load::NAMESPACE
        );
        assert_eq!(
            without_times(failed, &name),
            json!({
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "metadata": {"namespace": load::NAMESPACE},
                "reportingController": "kube-proxy",
                "reportingInstance": instance,
                "type": "Warning",
                "reason": "FailedToStartServiceHealthcheck",
                "action": "Listen",
                "note": note,
                "regarding": {
                    "apiVersion": "v1", "kind": "Service", "namespace": load::NAMESPACE,
                    "name": name, "uid": "5e7b1ce5",
                },
            })
        );

        let (_, log) = program.terminate();
        assert!(log.contains("Failed to start healthcheck"), "{log}");
    });
}

#[test]
fn another_mode_than_ipvs_is_an_event() {
    run(|mut namespace| async move {
        let programs = tempfile::tempdir().unwrap();
        put_program(programs.path(), "modprobe", "echo \"$@\" >>$0.asked; exit 1");
        namespace.0.add_programs(programs.path());
        let cluster = Cluster::start().await;
        let mut command = namespace.without_ipvs(Path::new(env!("CARGO_BIN_EXE_switchyard")));
        command.args(cluster.arguments()).arg("--proxy-mode=ipvs");
        let program = Program::spawn(command);
        let replaced = cluster.event("ProxyModeReplaced", "using iptables").await;
        assert_eq!(replaced["type"], "Warning");
        assert_eq!(replaced["regarding"]["name"], NODE);
        let note = replaced["note"].as_str().unwrap();
        assert!(note.starts_with("ipvs cannot be used on this node: "), "{note}");
        let asked = fs::read_to_string(programs.path().join("modprobe.asked")).unwrap();
        assert_eq!(asked, "-q ip_vs\n");
        let (_, log) = program.terminate();
        let warned = |line: &str| line.starts_with('W') && line.contains(note);
        assert!(log.lines().any(warned), "{log}");
    });
}

#[test]
fn what_the_mode_cannot_do_is_an_event_a_metric_and_one_warning() {
    run(|namespace| async move {
        let cluster = Cluster::start().await;
        let mut service = load::service(1);
        let name = service["metadata"]["name"].as_str().unwrap().to_owned();
        service["metadata"]["annotations"] = json!({"kube-router.io/service.scheduler": "lc"});
        cluster.server.store().apply(service);
        // This one asks for nothing, and has the node's default.
        cluster.server.store().apply(load::service(2));

        let arguments = ["--proxy-mode=nftables", "--lb-algorithm=destination-hash"];
        let program = cluster.run_program(&namespace, &arguments);
        let asks = cluster.event("LbAlgorithmUnsupported", "least-connections").await;
        assert_eq!(
            (&asks["regarding"]["kind"], &asks["regarding"]["name"]),
            (&json!("Service"), &json!(name))
        );
        assert_eq!((&asks["type"], &asks["action"]), (&json!("Warning"), &json!("LbAlgorithm")));
        let message = "`least-connections` cannot be programmed in nftables mode; connections are spread \
                       by `round-robin` instead";
        let field = "metadata.annotations[kube-router.io/service.scheduler]";
        assert_eq!(asks["note"], format!("node {NODE}: {field}: {message}"));

        let default =
            cluster.event("LbAlgorithmUnsupported", "--lb-algorithm=destination-hash").await;
        assert_eq!(
            (&default["regarding"]["kind"], &default["regarding"]["name"]),
            (&json!("Node"), &json!(NODE))
        );

        namespace.wait(METRICS, "/metrics", |_, text| {
            text.contains("switchyard_service_ports_unsupported{ip_family=\"IPv4\"} 1\n")
                && text.contains("switchyard_objects_rejected_total{kind=\"Service\",reason=\"unsupported\"} 1\n")
        });
        let (_, log) = program.terminate();
        let warnings = |part: &str| {
            log.lines().filter(|line| line.starts_with('W') && line.contains(part)).count()
        };
        assert_eq!(warnings(message), 1, "{log}");
        assert_eq!(warnings("destination-hash"), 1, "{log}");
        let events = cluster.server.events();
        let unsupported = |event: &&Value| event["reason"] == "LbAlgorithmUnsupported";
        assert_eq!(events.iter().filter(unsupported).count(), 2, "{events:#?}");
    });
}

#[test]
fn why_it_ends_is_an_event() {
    for (server, address, reason) in [
        ("metrics", METRICS, "FailedToStartMetricServer"),
        ("healthz", "0.0.0.0:10256", "FailedToStartProxierHealthcheck"),
    ] {
        run(|namespace| async move {
            let cluster = Cluster::start().await;
            let _blocker = TcpListener::bind(address).unwrap();
            let program = cluster.run_program(&namespace, &["--bind-address-hard-fail"]);
            let (status, log) = program.ended();
            assert_eq!(status.code(), Some(1), "{log}");
            let event = without_times(cluster.event(reason, "").await, NODE);
            assert_eq!(event["type"], "Warning");
            assert_eq!(event["action"], "StartKubeProxy");
            assert_eq!(event["metadata"], json!({}));
            let regarding = json!({"apiVersion": "v1", "kind": "Node", "name": NODE});
            assert_eq!(event["regarding"], regarding);
            let note = event["note"].as_str().unwrap();
            let expected = format!("cannot serve {server} at {address}: Address already in use");
            assert!(note.starts_with(&expected), "{note}");
        });
    }
}
