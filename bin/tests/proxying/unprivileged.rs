//! As an ordinary user who has one capability, as the DaemonSets in `deploy/` run it.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::namespace::{HEALTH, Namespace};

const NODE: &str = "\
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
";

/// Starts what follows as user 65532 with CAP_NET_ADMIN and nothing else, now or later.
const AS_USER: [&str; 10] = [
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

#[test]
fn one_capability_is_enough() {
    let namespace = Namespace::new();
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

    let mut command: Command = namespace.0.command("setpriv");
    command
        .args(AS_USER)
        .arg(&program)
        .arg(format!("--manifests={}", manifests.display()))
        .args(["--hostname-override=node-1", "--proxy-mode=nftables"]);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    namespace.wait(HEALTH, "/healthz", |status, _| status == 200);
    assert!(namespace.list("tables").contains("table ip kube-proxy"));
    child.kill().unwrap();
    child.wait().unwrap();
}
