//! Behaviour when the configuration file changes while the program runs.

use std::{fs, process::Command, time::Duration};

use api_standin::{Resource, load};
use packet_rig::{
    Conversation, EchoServer, LoadGenerator, LoadPlan, Probe, Protocol, Target, http::metric_values,
};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    config_map::ConfigMap,
    manifests::{Manifests, NODE as NODE_MANIFEST, service, slice},
    namespace::{HEALTH, METRICS, Namespace, Program, until, until_ok},
    standin::{Cluster, NODE, run},
};

/// A Service with these cluster and external IPs and node port, and its endpoint.
fn web(name: &str, ip: &str, external: &str, node_port: u16) -> String {
    let spec = format!(
        "type: NodePort, clusterIP: {ip}, clusterIPs: [{ip}], externalIPs: [{external}], \
         ports: [{{port: 80, protocol: TCP, nodePort: {node_port}}}]"
    );
    service(name, &spec) + &slice(name, "8080, protocol: TCP", "{addresses: [192.0.2.1]}")
}

/// A second Service.
fn more() -> String {
    web("more", "10.96.0.11", "198.51.100.2", 30081)
}

/// A configuration of this mode with these fields.
fn in_mode(mode: &str, fields: &str) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
         mode: {mode}\nhostnameOverride: node-1\n{fields}"
    )
}

/// The program at work with a configuration that can be exchanged.
struct Running {
    mode: &'static str,
    namespace: Namespace,
    config: ConfigMap,
    directory: TempDir,
    manifests: Manifests,
    program: Program,
}

fn program(namespace: &Namespace, config: &ConfigMap, manifests: &Manifests) -> Command {
    let config = format!("--config={}", config.path().display());
    namespace.switchyard(&[&config, "--manifests", manifests.path()])
}

impl Running {
    /// In nftables mode, with these fields.
    fn start(fields: &str) -> Self {
        Self::start_in("nftables", fields)
    }

    fn start_in(mode: &'static str, fields: &str) -> Self {
        let namespace = Namespace::new();
        namespace
            .0
            .ip("addr add 192.0.2.2/32 dev lo\n\
                 route add 10.96.0.0/16 dev lo src 192.0.2.1\n\
                 route add 198.51.100.0/24 dev lo src 192.0.2.1")
            .unwrap();
        let directory = TempDir::new().unwrap();
        let web = web("web", "10.96.0.10", "198.51.100.1", 30080);
        let manifests = Manifests::new(&(NODE_MANIFEST.to_owned() + &web));
        let config = ConfigMap::new(&directory.path().join("mounted"), &in_mode(mode, fields));
        let program = Program::spawn(program(&namespace, &config, &manifests));
        namespace.wait_for_service_ports(1);
        Self { mode, namespace, config, directory, manifests, program }
    }

    /// Exchanges the configuration, and waits until that had this result so often.
    #[track_caller]
    fn change(&mut self, fields: &str, result: &str, count: u32) {
        self.change_from(fields, METRICS, result, count);
    }

    #[track_caller]
    fn change_from(&mut self, fields: &str, metrics: &str, result: &str, count: u32) {
        self.config.exchange(&in_mode(self.mode, fields));
        let name = format!("switchyard_config_reloads_total{{result=\"{result}\"}}");
        self.namespace
            .wait(metrics, "/metrics", |_, text| metric_values(text, &name) == [f64::from(count)]);
    }

    /// Ends the program, which has run all the time, and starts it again with what the file says
    /// now. Both logs.
    fn start_again(self) -> [String; 2] {
        let Self { namespace, config, manifests, program: first, directory: _directory, mode: _ } =
            self;
        let (signal, before) = first.terminate();
        assert_eq!(signal, Some(15), "it ended by itself: {before}");
        let second = Program::spawn(program(&namespace, &config, &manifests));
        namespace.wait_for_service_ports(1);
        [before, second.terminate().1]
    }

    /// The log of the program, which has run all the time.
    fn log(self) -> String {
        let (signal, log) = self.program.terminate();
        assert_eq!(signal, Some(15), "it ended by itself: {log}");
        log
    }

    fn open(&self, address: &str) -> std::io::Result<Conversation> {
        let target = Target::tcp(address.parse().unwrap());
        let probe = Probe { timeout: Duration::from_secs(5), ..Probe::new(target) };
        self.namespace.0.run(|| probe.converse()).unwrap()
    }

    /// Waits until a new connection to the address is answered, or no longer is.
    #[track_caller]
    fn wait_for(&self, address: &str, answers: bool) {
        let what = format!("{address} answers: {answers}");
        until(&what, || self.open(address).and_then(|mut c| c.ask()).is_ok() == answers);
    }

    /// Waits until the mode's rules for IPv4 have this in them, or no longer have.
    #[track_caller]
    fn wait_for_rules(&self, text: &str, has: bool) {
        until_ok(|| {
            let table = match self.mode {
                "nftables" => self.namespace.list("table ip kube-proxy"),
                _ => self.namespace.listing("iptables-save", &[]),
            };
            match table.contains(text) == has {
                true => Ok(()),
                false => Err(format!("{text}: not {has}: {table}")),
            }
        });
    }

    fn in_configz(&self, pointer: &str) -> serde_json::Value {
        let (_, body) = self.namespace.get(METRICS, "/configz").unwrap();
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        body["kubeproxy.config.k8s.io"].pointer(pointer).unwrap().clone()
    }
}

#[test]
fn what_the_node_serves_changes_under_load() {
    // Cluster IPs are in a set, unless all clients are masqueraded.
    let in_set = "{ 10.96.0.10 . tcp . 80 comment \"shop/web\" }";
    let pods = ["ip saddr != 10.1.0.0/16 ", in_set];
    serves_other_things("nftables", &pods);
}

#[test]
fn what_the_node_serves_changes_under_load_with_iptables() {
    serves_other_things("iptables", &["! -s 10.1.0.0/16 "]);
}

#[test]
fn a_liberal_conntrack_ends_the_rule_about_invalid_packets() {
    let mut running = Running::start_in("iptables", "");
    running.wait_for_rules("--ctstate INVALID -j DROP", true);
    running.change("conntrack: {maxPerCore: 0, tcpBeLiberal: true}\n", "applied", 1);
    running.wait_for_rules("--ctstate INVALID -j DROP", false);
    let (_, log) = running.program.terminate();
    assert!(!log.contains("another program"), "{log}");
}

/// `pods` is what is in the rules if pods are told by `10.1.0.0/16`, and only they are not
/// masqueraded.
fn serves_other_things(mode: &'static str, pods: &[&str]) {
    let mut running = Running::start_in(mode, "nodePortAddresses: [192.0.2.1/32]\n");
    let _server = EchoServer::start(&running.namespace.0, "web", 8080, &[Protocol::Tcp]).unwrap();
    running.wait_for("10.96.0.10:80", true);
    running.wait_for("192.0.2.1:30080", true);
    running.wait_for("192.0.2.2:30080", false);
    let mut open = running.open("192.0.2.1:30080").unwrap();
    open.ask().unwrap();
    let cluster_ip = Target::tcp("10.96.0.10:80".parse().unwrap());
    let plan = LoadPlan {
        timeout: Duration::from_secs(10),
        ..LoadPlan::new(&running.namespace.0, cluster_ip)
    };
    let load = LoadGenerator::start(&plan);

    running.change("nodePortAddresses: [192.0.2.2/32]\n", "applied", 1);
    running.wait_for("192.0.2.2:30080", true);
    running.wait_for("192.0.2.1:30080", false);
    if mode == "nftables" {
        let addresses = running.namespace.list("set ip kube-proxy nodeport-ips");
        assert!(addresses.contains("192.0.2.2") && !addresses.contains("192.0.2.1"), "{addresses}");
    }
    assert_eq!(running.in_configz("/nodePortAddresses"), json!(["192.0.2.2/32"]));

    // A gate, local pods, masquerading: what concerns Services comes along, in one sync.
    running.wait_for("198.51.100.1:80", true);
    running.change(
        "nodePortAddresses: [192.0.2.2/32]\nclusterCIDR: 10.1.0.0/16\n\
         featureGates: {AllowServiceExternalIPs: false}\n",
        "applied",
        2,
    );
    running.wait_for("198.51.100.1:80", false);
    pods.iter().for_each(|rule| running.wait_for_rules(rule, true));
    running.change(
        &format!(
            "nodePortAddresses: [192.0.2.2/32]\nclusterCIDR: 10.1.0.0/16\n\
             {mode}: {{masqueradeAll: true}}\n"
        ),
        "applied",
        3,
    );
    running.wait_for("198.51.100.1:80", true);
    // Everybody is masqueraded now.
    running.wait_for_rules(pods[pods.len() - 1], false);

    open.ask().expect("a connection stays, though its address is no longer served");
    let report = load.finish().unwrap();
    for tally in [&report.new_connections, &report.persistent] {
        assert!(tally.attempts > 20, "{report:?}");
        assert_eq!(tally.failed(), 0, "{:?}", tally.failures);
    }

    // A new start with the same file makes the same of it.
    running.change(
        &format!(
            "nodePortAddresses: [192.0.2.0/24]\nclusterCIDR: 10.2.0.0/16\n\
             featureGates: {{AllowServiceExternalIPs: false}}\n\
             {mode}: {{masqueradeAll: true}}\nlogging: {{verbosity: 2}}\n"
        ),
        "applied",
        4,
    );
    running.wait_for("198.51.100.1:80", false);
    let (_, metrics) = running.namespace.get(METRICS, "/metrics").unwrap();
    let repairs = metric_values(&metrics, "switchyard_drift_repairs_total");
    assert_eq!(repairs, [0.0], "what we change is nobody else's doing");
    let [log, again] = running.start_again();
    let synced = again.lines().find(|line| line.contains("\"Synced\" full=true")).unwrap();
    // A chain that nothing uses any more may go.
    assert!(synced.contains(" added=0 "), "{synced}");
    let told = "\"Configuration changed\" field=\"nodePortAddresses\" \
                from=\"[\\\"192.0.2.1/32\\\"]\" to=\"[\\\"192.0.2.2/32\\\"]\"";
    assert!(log.contains(told), "{log}");
    assert!(!log.lines().any(|line| line.starts_with('E')), "no errors: {log}");
}

#[test]
fn what_cannot_be_used_leaves_the_rest_alone() {
    let mut running = Running::start("nodePortAddresses: [192.0.2.1/32]\n");
    let metrics = |running: &Running| running.namespace.get(METRICS, "/metrics").unwrap().1;
    let in_effect = |text: &str| metric_values(text, "switchyard_config_in_effect");
    assert_eq!(in_effect(&metrics(&running)), [1.0]);
    let before = running.namespace.list("ruleset");

    running.change("nodePortAddresses: [nonsense]\nbindAddress: x\n", "rejected", 1);
    assert_eq!(in_effect(&metrics(&running)), [0.0]);
    running.change("nodePortAddresses: 7\n", "rejected", 2);
    running.change("nodePortAddresses: [192.0.2.1/32\n", "rejected", 3);
    assert_eq!(running.namespace.list("ruleset"), before);
    assert_eq!(running.in_configz("/nodePortAddresses"), json!(["192.0.2.1/32"]));

    // It still follows the cluster.
    running.manifests.write("more", &more());
    running.namespace.wait_for_service_ports(2);

    // And goes on from there: first only written otherwise, then something else.
    running.change("# Good again\nnodePortAddresses: ['192.0.2.1/32']\n", "unchanged", 1);
    assert_eq!(in_effect(&metrics(&running)), [1.0]);
    running.change("nodePortAddresses: [192.0.2.2/32]\n", "applied", 1);
    let log = running.log();
    let errors: Vec<&str> = log.lines().filter(|line| line.starts_with('E')).collect();
    assert_eq!(errors.len(), 3, "{log}");
    for part in [
        "\"Invalid configuration file; keeping the previous configuration\"",
        "KubeProxyConfiguration.BindAddress: Invalid value",
        "KubeProxyConfiguration.NodePortAddresses[0]: Invalid value",
    ] {
        assert!(errors[0].contains(part), "{part} is not in {}", errors[0]);
    }
}

#[test]
fn a_mode_that_cannot_be_run_is_rejected() {
    let running = Running::start("");
    running.program.terminate();
    // Without the programs of iptables, which are looked for when the mode is to change.
    let mut command = program(&running.namespace, &running.config, &running.manifests);
    command.env("PATH", running.directory.path());
    let mut running = Running { program: Program::spawn(command), ..running };
    running.namespace.wait_for_service_ports(1);
    running.config.exchange(&in_mode("iptables", ""));
    let name = "switchyard_config_reloads_total{result=\"rejected\"}";
    running.namespace.wait(METRICS, "/metrics", |_, text| metric_values(text, name) == [1.0]);
    let log = running.log();
    assert!(log.contains("iptables cannot be used on this node"), "{log}");
}

/// The program, and its configuration, which has these fields.
fn from_cluster(cluster: &Cluster, namespace: &Namespace, fields: &str) -> (ConfigMap, Program) {
    let config = ConfigMap::new(&cluster.directory.path().join("mounted"), fields);
    let argument = format!("--config={}", config.path().display());
    (config, Program::start(namespace, &[&argument]))
}

/// A configuration that leads to this cluster.
fn of_cluster(cluster: &Cluster, fields: &str) -> String {
    let kubeconfig = cluster.directory.path().join("kubeconfig");
    let client = format!("clientConnection: {{kubeconfig: {}}}\n", kubeconfig.display());
    in_mode("nftables", &format!("{client}conntrack: {{maxPerCore: 0}}\n{fields}"))
}

#[test]
fn what_would_make_a_start_fail_is_an_event() {
    run(|namespace| async move {
        let cluster = Cluster::start().await;
        let mut node = load::node(NODE);
        node["status"]["addresses"] = json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
        node["spec"]["podCIDRs"] = json!([]);
        cluster.server.store().apply(node.clone());
        load::fill(cluster.server.store(), 1, 1);
        let text = |fields: &str| of_cluster(&cluster, fields);
        let (mut config, program) = from_cluster(&cluster, &namespace, &text(""));
        namespace.wait(HEALTH, "/readyz", |status, _| status == 200);

        config.exchange(&text("clusterCIDR: nonsense\n"));
        let event = cluster.event("ConfigurationRejected", "ClusterCIDRs[0]: Invalid value").await;
        assert_eq!(event["type"], "Warning");
        assert_eq!(event["regarding"]["kind"], "Node");
        assert_eq!(event["regarding"]["name"], NODE);
        config.exchange(&text("").replace("/kubeconfig}", "/nowhere}"));
        cluster.event("ConfigurationRejected", "/nowhere").await;

        config.exchange(&text("clusterCIDR: 10.1.0.0/16\noomScoreAdj: 7\n"));
        let wait = |result: &str, count: f64| {
            let name = format!("switchyard_config_reloads_total{{result=\"{result}\"}}");
            namespace.wait(METRICS, "/metrics", |_, text| metric_values(text, &name) == [count])
        };
        wait("applied", 1.0);
        let score = format!("/proc/{}/oom_score_adj", program.id());
        assert_eq!(fs::read_to_string(score).unwrap(), "7\n");
        // What is only too early is taken in when it is time.
        config.exchange(&text("detectLocalMode: NodeCIDR\n"));
        cluster.event("ConfigurationRejected", "PodCIDR allocation on node").await;
        node["spec"]["podCIDRs"] = json!(["10.244.1.0/24"]);
        cluster.server.store().apply(node);
        let metrics = wait("applied", 2.0);
        let name = "switchyard_config_reloads_total{result=\"rejected\"}";
        assert_eq!(metric_values(&metrics, name), [3.0], "each is told once");
        until("the pods are known", || {
            namespace.list("table ip kube-proxy").contains("10.244.1.0/24")
        });

        // This can be started with.
        config.exchange(&text("").replace("/kubeconfig}", "/kubeconfig, qps: 7}"));
        let (status, log) = program.ended();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains("fields=\"clientConnection.qps\""), "{log}");
    });
}

#[test]
fn before_the_node_is_known_every_change_is_a_restart() {
    run(|namespace| async move {
        let cluster = Cluster::start().await;
        assert!(cluster.server.store().delete(Resource::Nodes, "", NODE));
        let text = |fields: &str| of_cluster(&cluster, fields);
        let (mut config, program) = from_cluster(&cluster, &namespace, &text(""));
        namespace.wait(METRICS, "/healthz", |status, _| status == 200);
        config.exchange(&text("clusterCIDR: 10.1.0.0/16\n"));
        let (status, log) = program.ended();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains("fields=\"clusterCIDR\""), "{log}");
    });
}

/// Returns a setting of connection tracking of this namespace.
fn setting(namespace: &Namespace, name: &str) -> String {
    namespace.0.setting(&format!("netfilter/{name}")).unwrap()
}

#[test]
fn the_rest_of_the_program_changes_too() {
    // A namespace may not change the machine's limit of connections.
    let conntrack = |udp| format!("conntrack: {{maxPerCore: 0, udpTimeout: {udp}s}}\n");
    let mut running = Running::start(&conntrack(77));
    assert_eq!(setting(&running.namespace, "nf_conntrack_udp_timeout"), "77");

    running.change(&conntrack(88), "applied", 1);
    assert_eq!(setting(&running.namespace, "nf_conntrack_udp_timeout"), "88");
    // What cannot be written would end the next start, whatever else changes.
    let min = setting(&running.namespace, "nf_conntrack_max").parse::<u64>().unwrap() + 1;
    let limit = format!("conntrack: {{maxPerCore: 1, min: {min}, udpTimeout: 88s}}\n");
    running.change(&limit, "rejected", 1);
    running.change(&(limit + "logging: {format: json}\n"), "rejected", 2);

    // What debugging shows is shown from now on.
    let verbose = format!("{}logging: {{verbosity: 2}}\n", conntrack(88));
    running.change(&verbose, "applied", 2);
    running.manifests.write("more", &more());
    running.namespace.wait_for_service_ports(2);
    running.change(&conntrack(88), "applied", 3);
    running.manifests.remove("more");
    running.namespace.wait_for_service_ports(1);

    // Servers move, and show what is in effect.
    assert_eq!(running.namespace.get(METRICS, "/debug/flags/v").unwrap().0, 404);
    let moved = "healthzBindAddress: 192.0.2.1:1256\nmetricsBindAddress: 127.0.0.1:1249\n\
                 enableProfiling: true\nnftables: {minSyncPeriod: 2s, syncPeriod: 7s}\n";
    running.change_from(&(conntrack(88) + moved), "127.0.0.1:1249", "applied", 4);
    running.namespace.wait("192.0.2.1:1256", "/healthz", |status, _| status == 200);
    let is_gone = |server| running.namespace.get(server, "/healthz").is_none();
    until("the servers are gone", || is_gone(METRICS) && is_gone(HEALTH));
    assert_ne!(running.namespace.get("127.0.0.1:1249", "/debug/flags/v").unwrap().0, 404);
    let (_, config) = running.namespace.get("127.0.0.1:1249", "/configz").unwrap();
    assert!(config.contains("\"syncPeriod\":\"7s\""), "{config}");

    // What would end the program is tried before.
    let nowhere = moved.replace("192.0.2.1:1256", "203.0.113.1:1256");
    let hard = format!("{}{nowhere}bindAddressHardFail: true\n", conntrack(88));
    running.change_from(&hard, "127.0.0.1:1249", "rejected", 3);

    let log = running.log();
    assert!(log.contains("cannot serve at 203.0.113.1:1256: "), "{log}");
    let told = "could not set conntrack parameters from kube-proxy configuration: cannot change";
    assert!(log.contains(told), "{log}");
    let synced: Vec<&str> = log.lines().filter(|line| line.contains("\"Synced\"")).collect();
    assert!(!synced.is_empty(), "{log}");
    assert!(synced.iter().all(|line| line.contains("service_ports=2")), "{synced:#?}");
}

#[test]
fn other_fields_end_it() {
    let Running { namespace, mut config, program, directory: _directory, .. } = Running::start("");
    // Whatever else differs.
    config.exchange(&in_mode("iptables", "nodePortAddresses: [192.0.2.2/32]\n"));
    let (status, log) = program.ended();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("content of the proxy server's configuration file was updated"));
    assert!(log.contains("\"Changes to these fields need a restart\" fields=\"mode\""), "{log}");
    assert!(namespace.list("tables").contains("kube-proxy"), "what is programmed stays");
}
