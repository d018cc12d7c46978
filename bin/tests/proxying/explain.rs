//! The running program explains itself over its local socket.

use std::{fs, os::unix::fs::PermissionsExt};

use tempfile::TempDir;

use crate::{
    manifests::{Manifests, NODE, service, slice},
    namespace::{HEALTH, Namespace, until},
};

#[test]
fn a_running_proxy_answers_its_own_user() {
    let namespace = Namespace::new();
    let web = service("web", "clusterIP: 10.96.0.10, ports: [{port: 80, protocol: TCP}]");
    let ready = slice("web", "8080, protocol: TCP", "{addresses: [10.0.0.5], nodeName: node-1}");
    let manifests = Manifests::new(&format!("{NODE}{web}{ready}"));
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("proxy.sock");
    let flag = format!("--local-socket={}", socket.display());
    let program = manifests.start(&namespace, &[&flag]);
    namespace.wait(HEALTH, "/healthz", |status, _| status == 200);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let run = |status: i32, arguments: &[&str]| {
        let output = namespace.switchyard(arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(status), "{text}{:?}", output.stderr);
        text
    };
    let text = run(0, &["explain", "shop/web", &flag]);
    assert!(text.starts_with("shop/web is served on node-1 by its only endpoint.\n"), "{text}");
    run(4, &["explain", "shop/none", &flag]);
    let taken = directory.path().join("snapshot");
    let lines = run(0, &["snapshot", &flag]);
    // The change is in the history, too.
    assert!(lines.contains("\"added\":[\"10.0.0.5:8080\"]"), "{lines}");
    fs::write(&taken, lines).unwrap();
    let from = taken.to_str().unwrap();
    assert_eq!(run(0, &["explain", "shop/web", "--from", from]), text);
    manifests.write("all", &format!("{NODE}{web}"));
    let refused = || {
        let output = namespace.switchyard(&["explain", "10.96.0.10:80", &flag]).output().unwrap();
        output.status.code() == Some(1)
    };
    until("the Service has no endpoint", refused);
    program.terminate();
    run(4, &["explain", "shop/web", &flag]);
}
