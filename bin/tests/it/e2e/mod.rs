//! `e2e/run.sh` against a simulated cluster: whatever happens, the cluster is left as it was.
//!
//! The tests are kubectl: a script in its place passes each call to a thread here ([`Fake`]), which
//! answers from the objects of a [`Cluster`].

mod client;
mod cluster;
mod jsonpath;
mod manifests;
mod network;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use self::cluster::{Cluster, Faults};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const IMAGE: &str = "localhost/switchyard:test";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn documents(text: &str) -> Vec<Value> {
    crate::deploy::parse(text)
}

/// A cluster, and kubectl for it.
struct Fake {
    cluster: Arc<Mutex<Cluster>>,
    port: u16,
    directory: TempDir,
}

impl Fake {
    fn new(cluster: Cluster) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let cluster = Arc::new(Mutex::new(cluster));
        let shared = Arc::clone(&cluster);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let cluster = Arc::clone(&shared);
                thread::spawn(move || answer(&cluster, stream.unwrap()));
            }
        });
        Self { cluster, port, directory: TempDir::new().unwrap() }
    }

    fn with_faults(faults: Faults) -> Self {
        let mut cluster = Cluster::new();
        cluster.faults = faults;
        Self::new(cluster)
    }

    fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(root().join("e2e/run.sh"));
        command
            .arg(subcommand)
            .env("KUBECTL", root().join("bin/tests/it/e2e/kubectl.sh"))
            .env("FAKE_KUBECTL_PORT", self.port.to_string())
            .env("KUBECONFIG", "/nonexistent/kubeconfig")
            .env("IMAGE", IMAGE)
            .env("E2E_IMAGE", "agnhost:test")
            .env("E2E_STATE", self.directory.path().join("state"))
            .env("E2E_ROLLOUT_SECONDS", "2")
            .env("E2E_RESTORE_SECONDS", "5")
            .env("E2E_SETTLE_SECONDS", "1")
            .env("E2E_SYNC_SECONDS", "0")
            .env("E2E_POLL", "0.1")
            .env("E2E_AFFINITY_SECONDS", "2")
            .env("TMPDIR", self.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// The command, with these checks only.
    fn run(&self, checks: &str) -> Command {
        let mut command = self.command("run");
        command.env("E2E_CHECKS", checks);
        command
    }

    /// Waits until kubectl was called with all of these words, for the n-th time.
    fn wait_for(&self, words: &[&str], times: usize) {
        let deadline = Instant::now() + Duration::from_secs(40);
        loop {
            let cluster = self.cluster.lock().unwrap();
            let is_it = |call: &&String| words.iter().all(|word| call.contains(word));
            if cluster.calls.iter().filter(is_it).count() >= times {
                return;
            }
            assert!(Instant::now() < deadline, "{words:?}: {:#?}", cluster.calls);
            drop(cluster);
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Checks that the cluster is as at the start, to the byte, and that nothing is kept to restore.
    #[track_caller]
    fn assert_as_it_was(&self, before: &Snapshot) {
        assert_eq!(&Snapshot::of(self), before);
        assert!(!self.directory.path().join("state").exists(), "the state is still there");
        let left = fs::read_dir(self.directory.path()).unwrap().count();
        assert_eq!(left, 0, "temporary files are left");
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self)
    }
}

/// The names of all objects but pods, and the text of the DaemonSet's spec.
#[derive(Debug, PartialEq)]
struct Snapshot {
    names: BTreeSet<(String, String, String)>,
    spec: Option<String>,
}

impl Snapshot {
    fn of(fake: &Fake) -> Self {
        let cluster = fake.cluster.lock().unwrap();
        let names = cluster.objects.keys().filter(|(kind, ..)| kind != "pods").cloned().collect();
        let key = ("daemonsets".to_owned(), "kube-system".to_owned(), "kube-proxy".to_owned());
        let spec = cluster.objects.get(&key).map(|object| object["spec"].to_string());
        Self { names, spec }
    }
}

/// Answers one call of kubectl.
fn answer(cluster: &Mutex<Cluster>, mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut word = || {
        let mut bytes = Vec::new();
        reader.read_until(0, &mut bytes).unwrap();
        bytes.pop();
        String::from_utf8(bytes).unwrap()
    };
    let count: usize = word().parse().unwrap();
    let arguments: Vec<String> = (0..count).map(|_| word()).collect();
    let arguments: Vec<String> =
        arguments.into_iter().filter(|it| !it.starts_with("--request-timeout")).collect();
    let result = cluster.lock().unwrap().call(&arguments);
    let answer = result.unwrap_or_else(|wait| {
        thread::sleep(wait);
        Err("timed out waiting for the condition".to_owned())
    });
    let (code, text) = match &answer {
        Ok(text) => (0, text),
        Err(text) => (1, text),
    };
    // A caller that was ended does not read.
    _ = stream.write_all(format!("{code}\n{text}").as_bytes());
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(both).unwrap()
}

/// The columns of a row of the table.
#[track_caller]
fn row<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let table = text.split("\ncheck ").nth(1).unwrap_or_else(|| panic!("no table: {text}"));
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(name));
    line.unwrap_or_else(|| panic!("no row {name}: {text}")).split_whitespace().skip(1).collect()
}

#[test]
fn a_healthy_cluster_passes_every_check_and_is_left_as_it_was() {
    let fake = Fake::new(Cluster::new());
    let before = fake.snapshot();
    let output = fake.command("run").output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let listed = fake.command("list").output().unwrap().stdout;
    for line in String::from_utf8(listed).unwrap().lines() {
        let name = line.split('\t').next().unwrap();
        assert_eq!(row(&text, name), ["ok", "ok", "ok"], "{text}");
    }
    assert_eq!(row(&text, "swap"), ["-", "ok", "ok"], "{text}");
    assert!(text.contains("mode: iptables") && text.contains("mode: nftables"), "{text}");
    fake.assert_as_it_was(&before);
    // The image was in place, by one patch.
    let cluster = fake.cluster.lock().unwrap();
    let swaps = cluster.calls.iter().filter(|call| call.contains(IMAGE)).count();
    assert_eq!(swaps, 1, "{:#?}", cluster.calls);
}

#[test]
fn what_fails_with_switchyard_alone_fails_the_run() {
    let broken = BTreeSet::from(["udp"]);
    let fake = Fake::with_faults(Faults { broken, ..Faults::default() });
    let before = fake.snapshot();
    let output = fake.run("cluster-ip-tcp cluster-ip-udp").output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(row(&text, "cluster-ip-tcp"), ["ok", "ok", "ok"]);
    assert_eq!(row(&text, "cluster-ip-udp"), ["ok", "FAILED", "ok", "<--"]);
    assert!(text.contains("(from pod-client-1, UDP to 10.96."), "{text}");
    fake.assert_as_it_was(&before);
}

#[test]
fn every_check_can_fail() {
    let faults = Faults { everything: true, loses_connections: true, ..Faults::default() };
    let fake = Fake::with_faults(faults);
    let before = fake.snapshot();
    let mut command = fake.command("run");
    command.env("E2E_CHECK_SECONDS", "8").env("E2E_SETTLE_SECONDS", "0");
    let output = command.output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let listed = fake.command("list").output().unwrap().stdout;
    for line in String::from_utf8(listed).unwrap().lines() {
        let name = line.split('\t').next().unwrap();
        assert_eq!(row(&text, name), ["ok", "FAILED", "ok", "<--"], "{name}: {text}");
    }
    fake.assert_as_it_was(&before);
}

#[test]
fn what_fails_with_the_original_too_does_not_fail_the_run() {
    let broken_always = BTreeSet::from(["udp"]);
    let fake = Fake::with_faults(Faults { broken_always, ..Faults::default() });
    let output = fake.run("cluster-ip-udp").output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(row(&text, "cluster-ip-udp")[..3], ["FAILED", "FAILED", "FAILED"]);
}

#[test]
fn lost_connections_fail_the_swap_and_the_restart() {
    let fake = Fake::with_faults(Faults { loses_connections: true, ..Faults::default() });
    let before = fake.snapshot();
    let output = fake.run("restart").output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(row(&text, "restart"), ["ok", "FAILED", "ok", "<--"]);
    assert_eq!(row(&text, "swap")[..2], ["-", "FAILED"]);
    assert!(text.contains("3 of 300 connections lost"), "{text}");
    fake.assert_as_it_was(&before);
}

#[test]
fn a_check_that_hangs_is_ended() {
    let broken = BTreeSet::from(["dns"]);
    let fake = Fake::with_faults(Faults { broken, ..Faults::default() });
    let before = fake.snapshot();
    let output = fake.run("dns healthz").env("E2E_CHECK_SECONDS", "5").output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(row(&text, "dns"), ["ok", "FAILED", "ok", "<--"]);
    assert!(text.contains("not done after 5 s"), "{text}");
    assert_eq!(row(&text, "healthz"), ["ok", "ok", "ok"]);
    fake.assert_as_it_was(&before);
}

#[test]
fn an_image_that_does_not_start_is_taken_out_again() {
    let fake = Fake::with_faults(Faults { image_does_not_start: true, ..Faults::default() });
    let before = fake.snapshot();
    let output = fake.run("healthz").output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("the image does not come up"), "{text}");
    assert_eq!(row(&text, "healthz"), ["ok", "-", "-", "<--"]);
    fake.assert_as_it_was(&before);
}

#[test]
fn an_api_server_that_is_away_while_the_cluster_is_put_back_is_asked_again() {
    let fake = Fake::with_faults(Faults { failing_patches: 4, ..Faults::default() });
    let before = fake.snapshot();
    let output = fake.run("healthz").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    fake.assert_as_it_was(&before);
}

#[test]
fn a_cluster_that_cannot_be_put_back_is_reported_and_restored_later() {
    let fake = Fake::with_faults(Faults { failing_patches: usize::MAX, ..Faults::default() });
    let before = fake.snapshot();
    let output = fake.run("healthz").env("E2E_RESTORE_SECONDS", "1").output().unwrap();
    let message = text(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("make e2e-restore KUBECONFIG="), "{message}");
    assert_ne!(fake.snapshot(), before);
    fake.cluster.lock().unwrap().faults.failing_patches = 0;
    let output = fake.command("restore").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    fake.assert_as_it_was(&before);
}

fn signal(run: &Child, signal: Signal) {
    let pid = Pid::from_raw(run.id().try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[test]
fn signals_end_the_run_at_any_point_and_the_cluster_is_put_back() {
    let slow = Faults { original_is_slow: true, ..Faults::default() };
    let hanging = Faults { image_does_not_start: true, ..Faults::default() };
    for (faults, words, times, sent, code) in [
        (Faults::default(), ["rollout", "node-client"], 1, Signal::TERM, 143),
        (Faults::default(), ["exec", "client.sh get"], 1, Signal::INT, 130),
        (hanging, ["rollout", "kube-proxy"], 1, Signal::HUP, 129),
        (Faults::default(), ["exec", "client.sh get"], 10, Signal::TERM, 143),
        (slow, ["rollout", "kube-proxy"], 2, Signal::TERM, 143),
    ] {
        let fake = Fake::new(Cluster::new());
        let before = fake.snapshot();
        fake.cluster.lock().unwrap().faults = faults;
        let run = fake.run("cluster-ip-tcp healthz").spawn().unwrap();
        fake.wait_for(&words, times);
        fake.cluster.lock().unwrap().faults.original_is_slow = false;
        signal(&run, sent);
        // Another one while the cluster is put back changes nothing.
        thread::sleep(Duration::from_millis(300));
        signal(&run, sent);
        let output = run.wait_with_output().unwrap();
        let text = text(&output);
        assert!(text.contains("interrupted by SIG"), "{words:?}: {text}");
        assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
        fake.assert_as_it_was(&before);
    }
}

#[test]
fn a_reader_of_the_output_that_goes_away_does_not_stop_the_run() {
    let fake = Fake::new(Cluster::new());
    let before = fake.snapshot();
    let mut run = fake.run("healthz").spawn().unwrap();
    let mut first = [0];
    run.stdout.take().unwrap().read_exact(&mut first).unwrap();
    run.stderr.take();
    fake.wait_for(&["patch daemonset"], 3);
    run.wait().unwrap();
    fake.assert_as_it_was(&before);
}

/// Starts a run, and kills it when Switchyard's image is in place.
fn killed(fake: &Fake) {
    let mut run = fake.run("cluster-ip-tcp").spawn().unwrap();
    fake.wait_for(&["patch", IMAGE], 1);
    signal(&run, Signal::KILL);
    run.wait().unwrap();
    assert!(fake.cluster.lock().unwrap().is_switchyard());
    // Temporary files that nobody could remove.
    for entry in fs::read_dir(fake.directory.path()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "state" {
            fs::remove_dir_all(entry.path()).unwrap();
        }
    }
}

#[test]
fn restore_puts_back_what_a_killed_run_has_left() {
    let fake = Fake::new(Cluster::new());
    let before = fake.snapshot();
    killed(&fake);
    for _ in 0..2 {
        let output = fake.command("restore").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        fake.assert_as_it_was(&before);
    }
}

#[test]
fn the_next_run_puts_back_what_a_killed_run_has_left() {
    let fake = Fake::new(Cluster::new());
    let before = fake.snapshot();
    killed(&fake);
    let output = fake.run("healthz").output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("an earlier run did not put the cluster back"), "{text}");
    assert_eq!(row(&text, "healthz"), ["ok", "ok", "ok"]);
    fake.assert_as_it_was(&before);
}

#[test]
fn what_is_kept_of_one_cluster_is_not_put_into_another() {
    let fake = Fake::new(Cluster::new());
    killed(&fake);
    let before = fake.snapshot();
    let key = ("namespaces".to_owned(), String::new(), "kube-system".to_owned());
    fake.cluster.lock().unwrap().objects.get_mut(&key).unwrap()["metadata"]["uid"] = "other".into();
    for subcommand in ["restore", "run"] {
        let output = fake.command(subcommand).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output).contains("is of another cluster"), "{}", text(&output));
        assert_eq!(fake.snapshot(), before);
    }
}

#[test]
fn a_daemonset_that_somebody_has_changed_since_is_left_alone() {
    let fake = Fake::new(Cluster::new());
    killed(&fake);
    let key = ("daemonsets".to_owned(), "kube-system".to_owned(), "kube-proxy".to_owned());
    fake.cluster.lock().unwrap().objects.get_mut(&key).unwrap()["spec"]["template"]["spec"]["containers"]
        [0]["image"] = "kube-proxy:newer".into();
    let before = fake.snapshot();
    let output = fake.command("restore").env("E2E_RESTORE_SECONDS", "1").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("has the image kube-proxy:newer"), "{}", text(&output));
    assert_eq!(fake.snapshot().spec, before.spec);
}

#[test]
fn a_daemonset_that_is_not_rolled_out_by_itself_is_swapped_and_put_back() {
    let mut cluster = Cluster::new();
    let key = ("daemonsets".to_owned(), "kube-system".to_owned(), "kube-proxy".to_owned());
    cluster.objects.get_mut(&key).unwrap()["spec"]["updateStrategy"] =
        serde_json::json!({"type": "OnDelete"});
    let fake = Fake::new(cluster);
    let before = fake.snapshot();
    let output = fake.run("healthz").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    fake.assert_as_it_was(&before);
    // The pods have the old image, too.
    let cluster = fake.cluster.lock().unwrap();
    for pod in cluster.all("pods", "kube-system") {
        assert_eq!(pod["spec"]["containers"][0]["image"], cluster::ORIGINAL);
    }
}

#[test]
fn without_a_daemonset_deploy_is_applied_and_removed_with_its_rules() {
    let fake = Fake::new(Cluster::without_proxy());
    let before = fake.snapshot();
    let mut command = fake.run("cluster-ip-tcp healthz");
    command
        .env("E2E_API_SERVER", "https://192.0.2.1:6443")
        .env("E2E_CLUSTER_CIDR", "10.244.0.0/16");
    let run = command.spawn().unwrap();
    fake.wait_for(&["exec", "client.sh get", "10.96."], 1);
    {
        let cluster = fake.cluster.lock().unwrap();
        let get = |kind: &str| {
            let key = (kind.to_owned(), "kube-system".to_owned(), "switchyard".to_owned());
            cluster.objects[&key].clone()
        };
        let pod = &get("daemonsets")["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["image"], IMAGE);
        assert_eq!(pod["initContainers"][0]["image"], IMAGE);
        let data = &get("configmaps")["data"];
        let config = documents(data["config.conf"].as_str().unwrap()).remove(0);
        assert_eq!(config["clusterCIDR"], "10.244.0.0/16");
        let kubeconfig = documents(data["kubeconfig.conf"].as_str().unwrap()).remove(0);
        assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], "https://192.0.2.1:6443");
    }
    let output = run.wait_with_output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(row(&text, "healthz"), ["-", "ok", "-"]);
    fake.wait_for(&["rollout status daemonset/cleanup"], 1);
    fake.assert_as_it_was(&before);
}

#[test]
fn what_cannot_be_tried_is_rejected_before_anything_changes() {
    type Change = fn(&mut Command);
    let without_proxy = |hidden_proxy| {
        let mut cluster = Cluster::without_proxy();
        cluster.hidden_proxy = hidden_proxy;
        cluster
    };
    let mut shell = Cluster::new();
    let key = ("daemonsets".to_owned(), "kube-system".to_owned(), "kube-proxy".to_owned());
    shell.objects.get_mut(&key).unwrap()["spec"]["template"]["spec"]["containers"][0]["command"] =
        serde_json::json!(["/bin/sh", "-c", "kube-proxy"]);
    let mut foreign = Cluster::new();
    let key = ("namespaces".to_owned(), String::new(), "switchyard-e2e".to_owned());
    foreign.objects.insert(key, serde_json::json!({"metadata": {"name": "switchyard-e2e"}}));
    let cases: [(Cluster, Change, &str); 9] = [
        (Cluster::new(), |it| _ = it.env_remove("KUBECONFIG"), "KUBECONFIG is not set"),
        (Cluster::new(), |it| _ = it.env("IMAGE", ""), "IMAGE is not set"),
        (Cluster::new(), |it| _ = it.env("E2E_IMAGE", ""), "E2E_IMAGE is not set"),
        (Cluster::new(), |it| _ = it.env("E2E_CHECKS", "some"), "there is no check some"),
        (
            Cluster::new(),
            |it| _ = it.env("E2E_DAEMONSET", "kube-system/kube-proxy/other"),
            "which container of kube-system/kube-proxy?",
        ),
        (without_proxy(false), |_| {}, "there is no DaemonSet kube-system/kube-proxy"),
        (
            without_proxy(true),
            |it| _ = it.env("E2E_API_SERVER", "https://a:1").env("E2E_CLUSTER_CIDR", "10.0.0.0/8"),
            "another proxy is at work",
        ),
        (shell, |_| {}, "the container runs /bin/sh"),
        (foreign, |_| {}, "the namespace switchyard-e2e is not of this program"),
    ];
    for (cluster, change, message) in cases {
        let fake = Fake::new(cluster);
        let before = fake.snapshot();
        let mut command = fake.command("run");
        change(&mut command);
        let output = command.output().unwrap();
        let text = text(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(message), "{message}: {text}");
        assert_eq!(fake.snapshot(), before, "{message}");
        let cluster = fake.cluster.lock().unwrap();
        assert!(!cluster.calls.iter().any(|call| call.contains("patch")), "{message}");
    }
}
