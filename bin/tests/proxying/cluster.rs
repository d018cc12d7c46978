//! Ways to an API server that are missing, or cannot be trusted.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::Stdio,
};

use tempfile::TempDir;

use crate::namespace::Namespace;

#[test]
fn no_way_to_a_server_is_an_error() {
    let namespace = Namespace::new();
    let output = namespace.switchyard(&["--conntrack-max-per-core=0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("neither a kubeconfig nor a server is given"), "{log}");
    assert_eq!(namespace.list("tables"), "", "nothing was touched");
}

#[test]
fn authorities_are_needed_only_for_certificates_that_are_checked() {
    let directory = TempDir::new().unwrap();
    let kubeconfig = directory.path().join("kubeconfig.conf");
    let log = |cluster: &str| {
        let text = format!(
            "clusters: [{{name: c, cluster: {{{cluster}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             users: [{{name: u, user: {{token: secret}}}}]\n\
             current-context: c\n"
        );
        fs::write(&kubeconfig, text).unwrap();
        let namespace = Namespace::new();
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        // As in an image that has no one's certificates.
        let mut command = namespace.switchyard(&[&kubeconfig, "--conntrack-max-per-core=0"]);
        command.env("SSL_CERT_FILE", "/dev/null").env("SSL_CERT_DIR", "/nonexistent");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let found = lines.find(|line| line.contains("Connection refused") || line.contains(" CA "));
        child.kill().unwrap();
        child.wait().unwrap();
        found.unwrap()
    };
    for cluster in [
        "server: \"http://127.0.0.1:1\"",
        "server: \"127.0.0.1:1\"",
        "server: \"https://127.0.0.1:1\", insecure-skip-tls-verify: true",
    ] {
        let found = log(cluster);
        assert!(found.contains("Connection refused"), "{cluster}: {found}");
        assert!(found.contains("server=\"127.0.0.1:1\""), "{found}");
    }
    let found = log("server: \"https://127.0.0.1:1\"");
    for part in ["needs the host's /etc/ssl/certs", "No CA certificates"] {
        assert!(found.contains(part), "{found}");
    }
}
