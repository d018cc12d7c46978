//! As an ordinary user who has one capability, as the DaemonSets in `deploy/` run it.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::namespace::{HEALTH, Namespace};

const NODE: &str = "\
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
";

/// Starts what follows as user 65532 without any capability, and with at most one to gain.
const AS_USER: [&str; 8] = [
    "--reuid",
    "65532",
    "--regid",
    "65532",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all,+net_admin",
    "--",
];

/// Starts what follows as user 65532 with CAP_NET_ADMIN and nothing else, now or later.
const WITH_CAPABILITY: [&str; 10] = [
    "--reuid",
    "65532",
    "--regid",
    "65532",
    "--clear-groups",
    "--no-new-privs",
    "--inh-caps=-all,+net_admin",
    "--ambient-caps=-all,+net_admin",
    "--bounding-set=-all,+net_admin",
    "--",
];

/// The program and a manifest of a node, for everybody to read.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let readable = |path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        readable(directory.path());
        let program = directory.path().join("switchyard");
        fs::copy(env!("CARGO_BIN_EXE_switchyard"), &program).unwrap();
        readable(&program);
        let manifests = directory.path().join("manifests");
        fs::create_dir(&manifests).unwrap();
        readable(&manifests);
        fs::write(manifests.join("node.yaml"), NODE).unwrap();
        Self(directory)
    }

    fn program(&self) -> PathBuf {
        self.0.path().join("switchyard")
    }

    /// Runs the program after `setpriv` with these arguments until it is healthy and `done`.
    #[track_caller]
    fn run(&self, namespace: &Namespace, setpriv: &[&str], mode: &str, done: impl Fn() -> bool) {
        let mut command: Command = namespace.0.command("setpriv");
        command
            .args(setpriv)
            .arg(self.program())
            .arg(format!("--manifests={}", self.0.path().join("manifests").display()))
            .args(["--hostname-override=node-1", &format!("--proxy-mode={mode}")]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        namespace.wait(HEALTH, "/healthz", |status, _| status == 200);
        let start = Instant::now();
        while !done() && start.elapsed() < Duration::from_secs(20) {
            sleep(Duration::from_millis(50));
        }
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(done(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn one_capability_is_enough() {
    let namespace = Namespace::new();
    Place::new().run(&namespace, &WITH_CAPABILITY, "nftables", || {
        namespace.list("tables").contains("table ip kube-proxy")
    });
}

#[test]
fn programs_that_are_called_have_what_the_file_grants() {
    let namespace = Namespace::new();
    let place = Place::new();
    let setcap = Command::new("setcap").arg("cap_net_admin+ep").arg(place.program()).status();
    assert!(setcap.unwrap().success());
    let chains = || {
        let saved = namespace.0.output("iptables-nft-save", &["-t", "nat"], "").unwrap();
        saved.contains(":KUBE-SERVICES ")
    };
    place.run(&namespace, &AS_USER, "iptables", chains);
    place.run(&namespace, &AS_USER, "nftables", || !chains());
}
