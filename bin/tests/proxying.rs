//! The program at work, in a network namespace of its own: health, metrics, the kernel, and what
//! is left when it ends.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// A namespace that is gone when this process is, or this value.
struct Namespace {
    /// Holds the namespace open.
    keeper: Child,
}

impl Namespace {
    fn new() -> Self {
        let script =
            "ip link set lo up && ip addr add 192.0.2.1/32 dev lo && echo up && exec sleep 300";
        let mut keeper = Command::new("unshare")
            .args(["--net", "--kill-child", "--fork", "sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n", "these tests need root, and the programs unshare and ip");
        Self { keeper }
    }

    /// A command in the namespace.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        // The keeper is `unshare`, whose child is in the namespace too, as it is itself.
        command.arg(format!("--net=/proc/{}/ns/net", self.keeper.id())).arg("--").arg(program);
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn get(&self, url: &str) -> Option<(u16, String)> {
        let write = "\n%{http_code}";
        let output =
            self.command("curl").args(["-s", "-m", "5", "-w", write, url]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n')?;
        Some((status.parse().ok().filter(|status| *status != 0)?, body.to_owned()))
    }

    /// Waits until an answer satisfies `good`.
    #[track_caller]
    fn wait(&self, url: &str, good: impl Fn(u16, &str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let answer = self.get(url);
            match answer {
                Some((status, body)) if good(status, &body) => return body,
                other if start.elapsed() > Duration::from_secs(20) => panic!("{url}: {other:?}"),
                _ => sleep(Duration::from_millis(50)),
            }
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// The program, ended with this value.
struct Program {
    child: Child,
}

impl Program {
    fn start(namespace: &Namespace, arguments: &[&str]) -> Self {
        let mut command = namespace.command(env!("CARGO_BIN_EXE_switchyard"));
        let child = command.args(arguments).stderr(Stdio::piped()).spawn().unwrap();
        Self { child }
    }

    /// Sends SIGTERM; the number of the signal that ended it, and its log.
    fn terminate(mut self) -> (Option<i32>, String) {
        use std::os::unix::process::ExitStatusExt;

        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let status = self.child.wait().unwrap();
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (status.signal(), log)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const NODE: &str = "\
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
";

/// A Service with this cluster IP, and one endpoint.
fn service(name: &str, ip: &str) -> String {
    format!(
        "\
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec:
  clusterIP: {ip}
  clusterIPs: [{ip}]
  ports: [{{port: 80, protocol: TCP}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: \"\", port: 8080, protocol: TCP}}]
endpoints: [{{addresses: [192.0.2.1]}}]
"
    )
}

fn write(directory: &Path, name: &str, text: &str) {
    // Renamed into place, so that no half of it is ever read.
    let hidden = directory.join(".writing");
    fs::write(&hidden, text).unwrap();
    fs::rename(hidden, directory.join(name)).unwrap();
}

const HEALTHZ: &str = "http://127.0.0.1:10256/healthz";
const METRICS: &str = "http://127.0.0.1:10249/metrics";

fn service_ports(metrics: &str) -> Option<u32> {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("switchyard_service_ports{ip_family=\"IPv4\"} "))?;
    line.parse().ok()
}

#[test]
fn it_programs_the_kernel_and_answers() {
    let namespace = Namespace::new();
    let directory = TempDir::new().unwrap();
    write(directory.path(), "node.yaml", NODE);
    write(directory.path(), "web.yaml", &service("web", "10.96.0.10"));
    let manifests = directory.path().to_str().unwrap();
    let program = Program::start(
        &namespace,
        &["--manifests", manifests, "--hostname-override=node-1", "-v=2"],
    );
    let body = namespace.wait(HEALTHZ, |status, _| status == 200);
    assert!(body.contains("\"nodeEligible\":true,\"healthy\":true"), "{body}");
    assert!(namespace.get("http://[::1]:10256/livez").is_some_and(|(status, _)| status == 200));
    let proxy_mode = namespace.get("http://127.0.0.1:10249/proxyMode");
    assert_eq!(proxy_mode, Some((200, "nftables".into())));
    namespace.wait(METRICS, |_, text| service_ports(text) == Some(1));
    let rules = namespace.run("nft", &["list", "table", "ip", "kube-proxy"]);
    assert!(rules.contains("10.96.0.10"), "{rules}");

    // A change is followed, and told.
    write(directory.path(), "more.yaml", &service("more", "10.96.0.11"));
    let text = namespace.wait(METRICS, |_, text| service_ports(text) == Some(2));
    for name in [
        "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1\n",
        "kubeproxy_sync_proxy_rules_service_changes_pending 0\n",
        "kubeproxy_proxy_livez_total{code=\"200\"} 1\n",
    ] {
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
    let rules = namespace.run("nft", &["list", "table", "ip", "kube-proxy"]);
    assert!(rules.contains("10.96.0.11"), "{rules}");

    // It stops like any program, and what it programmed stays.
    let (signal, log) = program.terminate();
    assert_eq!(signal, Some(15), "{log}");
    assert!(log.contains("\"Synced\" full=true"), "{log}");
    assert_eq!(namespace.run("nft", &["list", "table", "ip", "kube-proxy"]), rules);

    for _ in 0..2 {
        let program = env!("CARGO_BIN_EXE_switchyard");
        namespace.run(program, &["--cleanup"]);
        assert_eq!(namespace.run("nft", &["list", "tables"]), "");
    }
}

#[test]
fn an_address_in_use_is_fatal_only_if_it_should_be() {
    let namespace = Namespace::new();
    let directory = TempDir::new().unwrap();
    write(directory.path(), "node.yaml", NODE);
    let manifests = directory.path().to_str().unwrap();
    let first = Program::start(&namespace, &["--manifests", manifests]);
    namespace.wait("http://127.0.0.1:10256/livez", |status, _| status == 200);
    namespace.wait("http://127.0.0.1:10249/healthz", |status, body| (status, body) == (200, "ok"));

    let program = env!("CARGO_BIN_EXE_switchyard");
    let arguments = ["--manifests", manifests, "--bind-address-hard-fail"];
    let output = namespace.command(program).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("\"command failed\" err=\"cannot serve "), "{log}");
    assert!(log.contains("Address already in use"), "{log}");

    // Without the flag it waits for its turn.
    let second = Program::start(&namespace, &["--manifests", manifests]);
    sleep(Duration::from_secs(1));
    let (signal, _) = first.terminate();
    assert_eq!(signal, Some(15));
    namespace.wait("http://127.0.0.1:10256/livez", |status, _| status == 200);
    let (_, log) = second.terminate();
    assert!(log.contains("\"Failed to start server\" name=\"healthz\""), "{log}");
    // Nothing of it is outside.
    assert!(TcpStream::connect("127.0.0.1:10256").is_err());
}
