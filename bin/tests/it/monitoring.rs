//! The alerts and the dashboard in `deploy/monitoring`: that they ask for metrics that there are, in
//! words of Prometheus.

use std::{collections::BTreeSet, fs, io::Write, process::Command};

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::deploy::{deploy, parse};

/// The names in the tables of `docs/metrics.md`, which another test compares with the program.
fn metrics() -> BTreeSet<String> {
    let page = fs::read_to_string(deploy("../docs/metrics.md")).unwrap();
    let mut names = BTreeSet::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("| `")) {
        let (name, rest) = line.split_once("` | ").unwrap();
        names.insert(name.to_owned());
        if rest.starts_with("histogram") {
            names.extend(["_bucket", "_sum", "_count"].map(|suffix| format!("{name}{suffix}")));
        }
    }
    names
}

/// The metrics that an expression of PromQL names, by the prefixes of the names.
fn named(expression: &str) -> Vec<&str> {
    const PREFIXES: [&str; 5] =
        ["kubeproxy_", "switchyard_", "rest_client_", "process_", "kubernetes_"];
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix))).collect()
}

#[track_caller]
fn check(expression: &str, known: &BTreeSet<String>) -> usize {
    let named = named(expression);
    for name in &named {
        assert!(known.contains(*name), "there is no metric {name}: {expression}");
    }
    named.len()
}

/// Checks or tests rules as Prometheus reads them, where its program is installed.
fn promtool(action: &str, rules: &Value) {
    let mut file = NamedTempFile::new().unwrap();
    write!(file, "{rules}").unwrap();
    match Command::new("promtool").args([action, "rules"]).arg(file.path()).output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(_) => packet_rig::skipped("promtool is not installed"),
    }
}

#[test]
fn alerts_ask_for_metrics_that_there_are() {
    let known = metrics();
    let documents = parse(&fs::read_to_string(deploy("monitoring/alerts.yaml")).unwrap());
    let [rules] = &documents[..] else { panic!("{documents:?}") };
    let alerts = rules["groups"][0]["rules"].as_array().unwrap();
    assert_eq!(alerts.len(), 8);
    promtool("check", rules);
    // A proxy that has never programmed one of its families.
    let series = |name: &str, family: &str| {
        let labels = format!("{{instance=\"node-1\",ip_family=\"{family}\"}}");
        let name = format!("kubeproxy_sync_proxy_rules_{name}_timestamp_seconds");
        json!({"series": name + &labels, "values": "1700000000x10"})
    };
    let firing = "count(ALERTS{alertname=\"SwitchyardSyncFails\",alertstate=\"firing\"})";
    promtool(
        "test",
        &json!({"rule_files": [deploy("monitoring/alerts.yaml")], "tests": [{
            "interval": "1m",
            "input_series": [series("last_queued", "IPv4"), series("last_queued", "IPv6"), series("last", "IPv6")],
            "promql_expr_test": [{"expr": firing, "eval_time": "6m", "exp_samples": [{"value": 1}]}],
        }]}),
    );
    let mut names = BTreeSet::new();
    for alert in alerts {
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{alert}")).to_owned();
        assert!(names.insert(text(&alert["alert"])), "twice: {alert}");
        let (expression, severity) = (text(&alert["expr"]), text(&alert["labels"]["severity"]));
        assert!(["warning", "critical"].contains(&severity.as_str()), "{severity}");
        assert!(text(&alert["annotations"]["summary"]).len() > 20, "{alert}");
        let asked = check(&expression, &known);
        // A target that is down has no metrics of ours.
        assert!(asked > 0 || expression.starts_with("up{"), "{expression}");
    }
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let known = metrics();
    let text = fs::read_to_string(deploy("monitoring/dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() > 10);
    let mut rules = Vec::new();
    for panel in panels {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            assert!(check(expression, &known) > 0, "{target}");
            let expr = expression.replace("$__rate_interval", "5m");
            rules.push(json!({"record": format!("expression{}", rules.len()), "expr": expr}));
        }
    }
    promtool("check", &json!({"groups": [{"name": "dashboard", "rules": rules}]}));
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let asked: usize = variables
        .iter()
        .filter_map(|v| v["query"].as_str())
        .map(|query| check(query, &known))
        .sum();
    assert_eq!(asked, 1, "the instances");
}
