//! The chart in `deploy/`, where `helm` is installed: its objects fit together as those of the plain
//! manifests, each value has its effect, and wrong values are rejected with their names.

use std::process::Command;

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Service},
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::deploy::{check, deploy, one, parse, read, rendered};

const SERVER: &str = "apiServer=\"https://control-plane.example:6443\"";

/// The arguments of helm for this command, with these values beside that of the API server.
fn arguments(command: &[&str], values: Value) -> Vec<String> {
    let chart = deploy("helm/switchyard");
    let mut arguments: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
    arguments.extend([chart.to_str().unwrap(), "--namespace=kube-system"].map(str::to_owned));
    arguments.extend(["--set-json".to_owned(), SERVER.to_owned()]);
    for (name, value) in values.as_object().unwrap() {
        arguments.extend(["--set-json".to_owned(), format!("{name}={value}")]);
    }
    arguments
}

/// The objects of the chart with these values, if helm is installed.
fn template(values: Value) -> Option<Vec<Value>> {
    let arguments = arguments(&["template", "switchyard"], values);
    rendered("helm", &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn what_helm_makes_fits_together() {
    let iptables = json!({"mode": "iptables"});
    for values in [
        json!({}),
        json!({"privileged": true, "config": iptables, "setSysctls": false}),
        json!({"privileged": true, "config": iptables}),
        json!({"existingConfigMap": "kube-proxy", "serviceAccount": {"existing": "kube-proxy"}}),
        json!({"extraArgs": ["--v=4"], "updateStrategy": {"type": "OnDelete", "rollingUpdate": null}}),
    ] {
        let Some(objects) = template(values) else { return };
        check(&objects);
    }
}

/// The plain manifests and the chart differ in names' labels alone.
#[test]
fn the_chart_is_the_base() {
    let Some(chart) = template(json!({})) else { return };
    let base: Vec<Value> =
        ["base/config.yaml", "base/daemonset.yaml"].into_iter().flat_map(read).collect();
    let of = |objects: &[Value]| {
        let set: DaemonSet = one(objects, "DaemonSet").unwrap();
        let spec = set.spec.unwrap();
        let config: ConfigMap = one(objects, "ConfigMap").unwrap();
        let data = config.data.unwrap().into_values().map(|text| parse(&text));
        (spec.template.spec, spec.update_strategy, data.collect::<Vec<_>>())
    };
    assert_eq!(of(&chart), of(&base));
}

#[test]
fn values_reach_the_daemon_set() {
    let digest = format!("sha256:{}", "0a".repeat(32));
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]}}});
    let toleration = json!({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"});
    let values = json!({
        "image": {"repository": "registry.example/switchyard", "digest": digest,
            "pullPolicy": "Always", "pullSecrets": [{"name": "registry"}]},
        "config.healthzBindAddress": "[::]:11256",
        "env": [{"name": "HTTPS_PROXY", "value": "http://192.0.2.1:3128"}],
        "resources": {"limits": {"memory": "128Mi"}},
        "tolerations": [toleration],
        "nodeSelector": {"proxy": "switchyard"},
        "affinity": affinity,
        "priorityClassName": "node-proxy",
        "updateStrategy": {"rollingUpdate": {"maxUnavailable": "10%"}},
        "minReadySeconds": 5,
        "annotations": {"of": "set"}, "podAnnotations": {"of": "pod"}, "podLabels": {"team": "net"},
    });
    let Some(objects) = template(values) else { return };
    let set: DaemonSet = one(&objects, "DaemonSet").unwrap();
    assert_eq!(set.metadata.annotations.unwrap()["of"], "set");
    let spec = set.spec.unwrap();
    assert_eq!(spec.min_ready_seconds, Some(5));
    let rolling = spec.update_strategy.unwrap().rolling_update.unwrap();
    assert_eq!(rolling.max_unavailable, Some(IntOrString::String("10%".into())));
    assert_eq!(rolling.max_surge, Some(IntOrString::Int(0)));
    let metadata = spec.template.metadata.unwrap();
    assert_eq!(metadata.annotations.unwrap()["of"], "pod");
    assert_eq!(metadata.labels.unwrap()["team"], "net");
    let pod = spec.template.spec.unwrap();
    assert_eq!(pod.image_pull_secrets.unwrap()[0].name, "registry");
    assert_eq!(pod.priority_class_name.unwrap(), "node-proxy");
    assert_eq!(pod.node_selector.unwrap()["proxy"], "switchyard");
    assert_eq!(serde_json::to_value(pod.affinity).unwrap(), affinity);
    assert_eq!(serde_json::to_value(pod.tolerations).unwrap(), json!([toleration]));
    for container in pod.init_containers.iter().flatten().chain(&pod.containers) {
        let image = format!("registry.example/switchyard@{digest}");
        assert_eq!(container.image.as_ref(), Some(&image));
        assert_eq!(container.image_pull_policy.as_deref(), Some("Always"));
        let proxy = container.env.iter().flatten().find(|env| env.name == "HTTPS_PROXY").unwrap();
        assert_eq!(proxy.value.as_deref(), Some("http://192.0.2.1:3128"));
    }
    let proxy = &pod.containers[0];
    assert_eq!(proxy.resources.as_ref().unwrap().limits.as_ref().unwrap()["memory"].0, "128Mi");
    for probe in [&proxy.liveness_probe, &proxy.readiness_probe] {
        let get = probe.as_ref().unwrap().http_get.as_ref().unwrap();
        assert_eq!(get.port, IntOrString::Int(11256));
    }
}

/// The fields of a ServiceMonitor, whose type is none of the API server's own, are those of the
/// plain manifest.
#[test]
fn metrics_are_scraped_where_they_are_served() {
    let monitor = json!({"enabled": true, "labels": {"release": "prometheus"}});
    let values = json!({"metrics": {"bindAddress": "0.0.0.0:11249", "serviceMonitor": monitor}});
    let Some(objects) = template(values) else { return };
    check(&objects);
    let service: Service = one(&objects, "Service").unwrap();
    let spec = service.spec.unwrap();
    assert_eq!(spec.ports.unwrap()[0].port, 11249);
    let set: DaemonSet = one(&objects, "DaemonSet").unwrap();
    assert_eq!(spec.selector, set.spec.unwrap().selector.match_labels);
    let config: ConfigMap = one(&objects, "ConfigMap").unwrap();
    let config = parse(&config.data.unwrap()["config.conf"]).remove(0);
    assert_eq!(config["metricsBindAddress"], "0.0.0.0:11249");

    let find = |objects: &[Value]| {
        objects.iter().find(|object| object["kind"] == "ServiceMonitor").unwrap().clone()
    };
    let (found, plain) = (find(&objects), find(&read("overlays/monitoring/monitoring.yaml")));
    assert_eq!(found["metadata"]["labels"]["release"], "prometheus");
    assert_eq!(found["apiVersion"], plain["apiVersion"]);
    assert_eq!(found["spec"]["endpoints"], plain["spec"]["endpoints"]);
    let selected = found["spec"]["selector"]["matchLabels"].as_object().unwrap();
    let labels = service.metadata.labels.unwrap();
    assert!(selected.iter().all(|(name, value)| labels[name] == *value), "{selected:?}");
}

/// As the program takes them, which need no port.
#[test]
fn addresses_are_asked_at_their_ports() {
    for (address, healthz, metrics) in [
        ("10.0.0.5", 10256, 10249),
        ("::", 10256, 10249),
        ("fd00::5", 10256, 10249),
        ("10.0.0.5:11256", 11256, 11256),
        ("[fd00::5]:11256", 11256, 11256),
    ] {
        let config = json!({"healthzBindAddress": address, "metricsBindAddress": address});
        let values = json!({"config": config, "metrics.service": true});
        let Some(objects) = template(values) else { return };
        let service: Service = one(&objects, "Service").unwrap();
        let set: DaemonSet = one(&objects, "DaemonSet").unwrap();
        let pod = set.spec.unwrap().template.spec.unwrap();
        let probe = pod.containers[0].liveness_probe.clone().unwrap().http_get.unwrap();
        let found = (probe.port, service.spec.unwrap().ports.unwrap()[0].port);
        assert_eq!(found, (IntOrString::Int(healthz), metrics), "{address}");
    }
}

#[test]
fn wrong_values_are_rejected() {
    for (values, reason) in [
        (json!({"apiServer": ""}), "apiServer is needed"),
        (json!({"apiServer": "10.0.0.1"}), "/apiServer"),
        (json!({"image.digest": "sha256:1"}), "/image/digest"),
        (json!({"image.tagg": "1"}), "'tagg' not allowed"),
        (
            json!({"updateStrategy.rollingUpdate.maxSurge": 1}),
            "/updateStrategy/rollingUpdate/maxSurge",
        ),
        (json!({"metrics.service": true}), "metrics.bindAddress"),
        (
            json!({"metrics.service": true, "config.metricsBindAddress": "::1"}),
            "metrics.bindAddress",
        ),
        (json!({"config.healthzBindAddress": "[::]:0"}), "/config/healthzBindAddress"),
        (json!({"metrics.bindAddress": "0.0.0.0"}), "/metrics/bindAddress"),
    ] {
        let output = Command::new("helm")
            .args(arguments(&["template", "switchyard"], values.clone()))
            .output();
        let Ok(output) = output else {
            packet_rig::skipped("helm is not installed");
            return;
        };
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && log.contains(reason), "{values}: {log}");
    }
}

/// helm's own lints, and what it prints after an installation.
#[test]
fn helm_finds_no_fault() {
    for (command, printed) in [
        (&["lint", "--strict"][..], "0 chart(s) failed"),
        (&["install", "--dry-run=client", "switchyard"], "rollout status daemonset/switchyard"),
    ] {
        let Ok(output) = Command::new("helm").args(arguments(command, json!({}))).output() else {
            packet_rig::skipped("helm is not installed");
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains(printed), "{text}{log}");
    }
}
