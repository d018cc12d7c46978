//! Metrics, as Prometheus gets them after something has happened: all that there are, and no
//! others.

mod scrape;
mod table;

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Child, Stdio},
};

use api_standin::load;
use packet_rig::{EchoServer, Probe, Protocol};
use serde_json::json;
use tempfile::TempDir;

use self::{scrape::Family, table::Row};
use crate::{
    manifests::{Manifests, NODE, service, slice},
    namespace::{HEALTH, METRICS, Namespace, Program, put_program, until, until_ok_async},
    standin::{Cluster, run},
};

/// Metrics that these tests do not change, by the starts of names: failures that need a kernel
/// which refuses a second transaction only (a unit test has them).
const NEVER: &[&str] = &["kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total"];
/// Metrics of flags that these tests do not give (`flows` and `objects` have them).
const OF_FLAG: &[&str] = &[
    "switchyard_conntrack_service_entries",
    "switchyard_conntrack_other_entries",
    "switchyard_conntrack_stuck_connections",
    "switchyard_objects_client",
];
/// Metrics of an API server only.
const OF_SERVER: &[&str] = &["rest_client_", "switchyard_watch_silence_seconds"];

/// Compares what a program in this mode exports with `docs/metrics.md`, but for what has these starts.
#[track_caller]
fn compare(text: &str, mode: &str, absent: &[&[&str]]) {
    let mut families = scrape::families(text);
    let of_mode = |row: &Row| row.mode.is_none_or(|only| only == mode);
    for (name, row) in table::rows().into_iter().filter(|(_, row)| of_mode(row)) {
        let found = families.remove(&name);
        if absent.iter().any(|names| names.iter().any(|start| name.starts_with(start))) {
            assert!(found.is_none(), "{name} is there after all");
            continue;
        }
        let Some(found) = found else { panic!("{name} is not in\n{text}") };
        assert_row(&name, &row, &found);
        assert!(found.help.len() > 10, "{name}: {:?}", found.help);
        assert_eq!(
            found.help.starts_with("[ALPHA] "),
            name.starts_with("kubeproxy_") || name.starts_with("rest_client_"),
            "{name}: {}",
            found.help
        );
    }
    let unknown: Vec<&String> = families.keys().collect();
    assert!(unknown.is_empty(), "not in docs/metrics.md: {unknown:?}");
}

#[track_caller]
fn assert_row(name: &str, row: &Row, found: &Family) {
    assert_eq!(found.kind, row.kind, "{name}");
    assert_eq!(found.labels, row.labels, "{name}");
    assert_eq!(found.buckets, row.buckets, "{name}");
}

fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    line.parse().ok()
}

#[track_caller]
fn assert_values(text: &str, expected: &[(&str, f64)]) {
    for (series, expected) in expected {
        assert_eq!(value(text, series), Some(*expected), "{series} in\n{text}");
    }
}

/// Has taken the program's table away, and holds one with its name.
pub(crate) struct Owner(Child);

impl Owner {
    pub(crate) fn of_table(namespace: &Namespace) -> Self {
        let mut command = namespace.0.command("nft");
        let mut child = command.arg("-i").stdin(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.as_mut().unwrap();
        // One transaction: between two, the program may have added its table again.
        let line = "delete table ip kube-proxy; add table ip kube-proxy { flags owner; }\n";
        stdin.write_all(line.as_bytes()).unwrap();
        stdin.flush().unwrap();
        let owner = Self(child);
        until("nft owns a table", || namespace.list("ruleset").contains("flags owner"));
        owner
    }
}

impl Drop for Owner {
    /// The table goes, too.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Puts objects of all sorts there.
fn fill(cluster: &Cluster) {
    let store = cluster.server.store();
    load::fill(store, 3, 2);
    let with = |index, change: fn(&mut serde_json::Value)| {
        let mut service = load::service(index);
        change(&mut service);
        store.apply(service);
    };
    with(3, |service| service["spec"]["internalTrafficPolicy"] = "Local".into());
    with(4, |service| {
        service["spec"]["type"] = "LoadBalancer".into();
        service["spec"]["externalTrafficPolicy"] = "Local".into();
        service["spec"]["healthCheckNodePort"] = 31000.into();
        service["spec"]["ports"][0]["nodePort"] = 30080.into();
    });
    // Endpoints of these are on other nodes.
    for slice in [3, 4].into_iter().flat_map(|index| load::slices(index, 2)) {
        store.apply(slice);
    }
    with(5, |service| service["spec"]["externalIPs"] = json!(["nonsense"]));
    with(6, |service| {
        service["spec"]["clusterIP"] = load::cluster_ip(0).to_string().into();
        service["spec"]["clusterIPs"] = json!([load::cluster_ip(0)]);
        service["metadata"]["creationTimestamp"] = "2026-06-01T00:00:00Z".into();
    });
    with(7, |service| service["spec"]["ports"] = "none".into());
    with(8, |service| service["spec"]["ports"][0]["protocol"] = "UDP".into());
    store.apply(datagrams(2));
}

/// The slice of the Service with datagrams.
fn datagrams(endpoints: usize) -> serde_json::Value {
    let numbers: Vec<usize> = (100..100 + endpoints).collect();
    let mut slice = load::slice(8, 0, &numbers);
    slice["ports"][0]["protocol"] = "UDP".into();
    slice
}

async fn wait(namespace: &Namespace, series: &str, good: impl Fn(f64) -> bool) -> String {
    until_ok_async(|| {
        let text = namespace.get(METRICS, "/metrics").map(|(_, text)| text).unwrap_or_default();
        match value(&text, series).is_some_and(&good) {
            true => Ok(text),
            false => Err(format!("{series} in\n{text}")),
        }
    })
    .await
}

#[test]
fn nftables_mode_exports_what_the_page_says() {
    run(|namespace| async move {
        let cluster = Cluster::start().await;
        fill(&cluster);
        let _program = cluster.run_program(&namespace, &["--proxy-mode=nftables"]);
        let ports = "switchyard_service_ports{ip_family=\"IPv4\"}";
        wait(&namespace, ports, |ports| ports == 7.0).await;

        let owner = Owner::of_table(&namespace);
        cluster.server.store().apply(load::slices(0, 1).remove(0));
        let failures =
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"}";
        wait(&namespace, failures, |failures| failures >= 1.0).await;
        drop(owner);
        namespace.wait(HEALTH, "/readyz", |_, body| !body.contains("problems"));
        let mut slice = load::slices(0, 3).remove(0);
        slice["metadata"]["annotations"] = json!({"endpoints.kubernetes.io/last-change-trigger-time": jiff::Timestamp::now().to_string()});
        cluster.server.store().apply(slice);
        let programming =
            "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}";
        wait(&namespace, programming, |count| count == 1.0).await;
        cluster.server.store().apply(datagrams(1));
        let flows = "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"}";
        wait(&namespace, flows, |count| count == 0.0).await;
        cluster.event("Starting", "").await;
        for path in ["/livez", "/healthz", "/livez"] {
            assert_eq!(namespace.get(HEALTH, path).unwrap().0, 200);
        }
        let slices = "kubeproxy_sync_proxy_rules_endpoint_changes_total";
        wait(&namespace, slices, |count| count >= 9.0).await;
        let pending = "kubeproxy_sync_proxy_rules_endpoint_changes_pending";
        wait(&namespace, pending, |count| count == 0.0).await;
        let posts = format!(
            "rest_client_requests_total{{code=\"201\",host=\"{}\",method=\"POST\"}}",
            cluster.server.address()
        );
        // The release of the API server.
        namespace.wait(METRICS, "/metrics", |_, text| text.contains("git_version=\"v1.36.2\""));
        // The start, and the family that was refused.
        let text = wait(&namespace, &posts, |count| count == 2.0).await;
        compare(&text, "nftables", &[NEVER, OF_FLAG]);
        let families = 2.0;
        assert_values(
            &text,
            &[
                (ports, 7.0),
                (slices, 6.0 + 3.0),
                ("kubeproxy_sync_proxy_rules_service_changes_total", 8.0 * families),
                ("kubeproxy_sync_proxy_rules_service_changes_pending", 0.0),
                (pending, 0.0),
                ("kubeproxy_proxy_livez_total{code=\"200\"}", 2.0),
                ("kubeproxy_proxy_healthz_total{code=\"200\"}", 1.0),
                ("switchyard_objects_rejected_total{kind=\"Service\",reason=\"invalid\"}", 1.0),
                ("switchyard_objects_rejected_total{kind=\"Service\",reason=\"conflict\"}", 1.0),
                ("switchyard_objects_rejected_total{kind=\"Service\",reason=\"malformed\"}", 1.0),
                ("kubernetes_feature_enabled{name=\"WatchListClient\",stage=\"BETA\"}", 1.0),
                ("kubernetes_feature_enabled{name=\"NFTablesProxyMode\",stage=\"\"}", 1.0),
                ("kubernetes_feature_enabled{name=\"AllAlpha\",stage=\"ALPHA\"}", 0.0),
                ("hidden_metrics_total", 0.0),
            ],
        );
        let local = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
        for (family, policy, count) in [
            ("IPv4", "internal", 1.0),
            ("IPv4", "external", 1.0),
            ("IPv6", "internal", 0.0),
            ("IPv6", "external", 0.0),
        ] {
            let series = format!("{local}{{ip_family=\"{family}\",traffic_policy=\"{policy}\"}}");
            assert_values(&text, &[(&series, count)]);
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        for what in ["last", "last_queued"] {
            let series = format!(
                "kubeproxy_sync_proxy_rules_{what}_timestamp_seconds{{ip_family=\"IPv6\"}}"
            );
            let age = now.as_secs_f64() - value(&text, &series).unwrap();
            assert!((0.0..60.0).contains(&age), "{series}: {age}");
        }
        let host = cluster.server.address();
        let of_server = |name: &str, verb: &str| {
            value(&text, &format!("rest_client_{name}{{host=\"{host}\",verb=\"{verb}\"}}"))
        };
        // The Events, which were answered as they were sent. Watches have no size.
        assert_eq!(of_server("request_size_bytes_count", "POST"), Some(2.0));
        assert_eq!(of_server("response_size_bytes_count", "POST"), Some(2.0));
        assert!(of_server("request_size_bytes_sum", "POST") > Some(400.0));
        assert!(of_server("response_size_bytes_sum", "POST") > Some(400.0));
        assert_eq!(of_server("response_size_bytes_count", "GET"), Some(1.0), "the release");
        for name in ["request_duration_seconds_count", "rate_limiter_duration_seconds_count"] {
            assert!(of_server(name, "GET") >= Some(4.0), "{name}: four watches\n{text}");
        }
        let bytes = value(&text, "switchyard_transaction_bytes_sum").unwrap();
        let messages = value(&text, "switchyard_transaction_messages_sum").unwrap();
        assert!(messages >= 8.0 && bytes >= 20.0 * messages, "{bytes} {messages}");

        cluster.server.faults().refuse_connections(true);
        cluster.server.faults().cut_connections();
        let errors = format!(
            "rest_client_requests_total{{code=\"<error>\",host=\"{host}\",method=\"GET\"}}"
        );
        wait(&namespace, &errors, |count| count >= 1.0).await;
    });
}

/// The Services, with an endpoint each at these addresses of other nodes.
fn objects(tcp: &[&str], udp: &str) -> String {
    let web = "clusterIP: 10.96.0.11, clusterIPs: [10.96.0.11, 'fd00:10::11'], \
               ports: [{port: 80, protocol: TCP}]";
    let dns = "clusterIP: 10.96.0.53, internalTrafficPolicy: Local, externalIPs: [no], \
               ports: [{port: 53, protocol: UDP}]";
    let changed = format!(
        "metadata: {{annotations: {{endpoints.kubernetes.io/last-change-trigger-time: {}}}, ",
        jiff::Timestamp::now()
    );
    let endpoints = |name, port, addresses: &[&str]| {
        let endpoint = |address| format!("{{nodeName: elsewhere, addresses: [{address}]}}");
        let endpoints: Vec<String> = addresses.iter().map(endpoint).collect();
        slice(name, port, &endpoints.join(", ")).replace("metadata: {", &changed)
    };
    [
        service("web", web),
        service("dns", dns),
        endpoints("web", "8080", tcp),
        endpoints("dns", "8080, protocol: UDP", &[udp]),
    ]
    .concat()
}

/// Programs of iptables that fail once when there is a file `refuse` beside them.
fn failing_programs(directory: &Path) {
    for base in ["iptables", "ip6tables"] {
        for part in ["", "-save", "-restore"] {
            let refusal = match part {
                "-restore" => "[ -e $0.refuse ] && rm $0.refuse && echo refused >&2 && exit 2\n",
                _ => "",
            };
            let script = format!("{refusal}exec /usr/sbin/{base}-nft{part} \"$@\"");
            put_program(directory, &format!("{base}{part}"), &script);
        }
    }
}

/// The rules of a table in our chains, but for the one that the kubelet has as well.
fn rules(namespace: &Namespace, table: &str) -> f64 {
    let text = namespace.listing("iptables-nft-save", &["-t", table]);
    let ours = |line: &&str| line.starts_with("-A KUBE-") && !line.starts_with("-A KUBE-FIREWALL ");
    text.lines().filter(ours).count() as f64
}

#[test]
fn iptables_mode_exports_what_the_page_says() {
    let namespace = Namespace::new();
    let programs = TempDir::new().unwrap();
    failing_programs(programs.path());
    let manifests = Manifests::new(&objects(&["10.1.0.1"], "10.1.0.2"));
    let write = |tcp: &[&str], udp: &str| manifests.write("all", &objects(tcp, udp));
    let mut command = namespace.switchyard(&manifests.arguments());
    command.arg("--proxy-mode=iptables");
    command.env("PATH", format!("{}:/usr/bin:/bin", programs.path().display()));
    let _program = Program::spawn(command);
    namespace.wait_for_service_ports(2);

    let owned = |table: &str| {
        format!("kubeproxy_sync_proxy_rules_iptables_total{{ip_family=\"IPv4\",table=\"{table}\"}}")
    };
    let failures = |what: &str| {
        format!(
            "kubeproxy_sync_proxy_rules_iptables_{what}restore_failures_total{{ip_family=\"IPv4\"}}"
        )
    };
    let (_, text) = namespace.get(METRICS, "/metrics").unwrap();
    assert_eq!(value(&text, &failures("")), None, "nothing has failed");
    let [nat, filter] = ["nat", "filter"].map(|table| rules(&namespace, table));
    assert_values(&text, &[(&owned("nat"), nat), (&owned("filter"), filter)]);
    let written = owned("nat").replace("_total", "_last");
    assert_eq!(value(&text, &written), Some(nat + 3.0), "and the jumps from built-in chains");

    // A change that is refused, so that everything is compared.
    fs::write(programs.path().join("iptables-restore.refuse"), "").unwrap();
    write(&["10.1.0.1", "10.1.0.3"], "10.1.0.2");
    namespace.wait(METRICS, "/metrics", |_, text| value(text, &failures("partial_")).is_some());
    // And one that is not.
    write(&["10.1.0.3"], "10.1.0.4");
    let programming = "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}";
    namespace.wait(METRICS, "/metrics", |_, text| value(text, programming) >= Some(3.0));
    for (server, path) in [(HEALTH, "/healthz"), (HEALTH, "/livez")] {
        assert_eq!(namespace.get(server, path).unwrap().0, 200);
    }
    let flows = "kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family=\"IPv4\"}";
    let text = namespace.wait(METRICS, "/metrics", |_, text| value(text, flows).is_some());
    compare(&text, "iptables", &[OF_SERVER, OF_FLAG]);
    let [nat, filter] = ["nat", "filter"].map(|table| rules(&namespace, table));
    assert_values(
        &text,
        &[
            (&owned("nat"), nat),
            (&owned("filter"), filter),
            (&failures(""), 1.0),
            (&failures("partial_"), 1.0),
            ("switchyard_objects_rejected_total{kind=\"Service\",reason=\"invalid\"}", 1.0),
        ],
    );
}

#[test]
fn userspace_mode_exports_what_its_forwarder_counts() {
    let namespace = Namespace::new();
    let objects = [
        NODE.to_owned(),
        service("web", "clusterIP: 10.96.0.11, ports: [{port: 80}]"),
        slice("web", "8080", "{addresses: [192.0.2.1]}"),
    ];
    let manifests = Manifests::new(&objects.concat());
    let _server = EchoServer::start(&namespace.0, "web", 8080, &[Protocol::Tcp]).unwrap();
    let mode = ["--proxy-mode=userspace", "--userspace-capture=addresses"];
    let _program = manifests.start(&namespace, &mode);
    namespace.wait_for_service_ports(1);
    let answered = Probe::new("tcp://10.96.0.11:80".parse().unwrap()).run(&namespace.0).unwrap();
    assert_eq!(answered.endpoint(), Some("web"));
    let bytes = "switchyard_userspace_bytes_total{direction=\"out\"}";
    let text = namespace.wait(METRICS, "/metrics", |_, text| value(text, bytes) > Some(0.0));
    assert_values(&text, &[("switchyard_userspace_connections_total{protocol=\"TCP\"}", 1.0)]);
    let mut families = scrape::families(&text);
    families.retain(|name, _| name.starts_with("switchyard_userspace_"));
    for (name, row) in table::rows().into_iter().filter(|(_, row)| row.mode == Some("userspace")) {
        let family = families.remove(&name).unwrap_or_else(|| panic!("{name} in\n{text}"));
        assert_row(&name, &row, &family);
    }
    assert_eq!(families.keys().next(), None, "not in docs/metrics.md");
}
