//! As a pod of kubeadm's DaemonSet: the arguments and the files at their places, unchanged.

use std::{fs, os::unix::fs::symlink};

use api_standin::load;

use crate::{
    config_map::ConfigMap,
    namespace::{HEALTH, Namespace, Program},
    standin::{Cluster, NODE, run},
};

/// The file that `kubeadm init` writes into the ConfigMap, by the minor releases that write it.
/// They differ in the fields that the type has, all of which are written, none with a default.
const CONFIGURATIONS: [(&[u32], &str); 3] = [
    (&[28], include_str!("../fixtures/kubeadm-1.28.yaml")),
    (&[29, 30], include_str!("../fixtures/kubeadm-1.29.yaml")),
    (&[31, 32, 33, 34, 35, 36, 37], include_str!("../fixtures/kubeadm.yaml")),
];
/// The command of the DaemonSet.
const COMMAND: [&str; 3] = [
    "/usr/local/bin/kube-proxy",
    "--config=/var/lib/kube-proxy/config.conf",
    "--hostname-override=$(NODE_NAME)",
];

/// Runs the rest of its arguments where `$1` is `/usr/local/bin` and `$2` is `/var/lib/kube-proxy`,
/// for no one else.
const CONTAINER: &str = "set -e
mount --bind \"$1\" /usr/local/bin
mount -t tmpfs tmpfs /var/lib
mkdir /var/lib/kube-proxy
mount --bind \"$2\" /var/lib/kube-proxy
shift 2
exec \"$@\"";

/// Starts the pod of a node with this configuration.
fn start(cluster: &Cluster, namespace: &Namespace, configuration: &str) -> Program {
    let (bin, mounted) =
        (cluster.directory.path().join("bin"), cluster.directory.path().join("cm"));
    for directory in [&bin, &mounted] {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir(directory).unwrap();
    }
    symlink(env!("CARGO_BIN_EXE_switchyard"), bin.join("kube-proxy")).unwrap();
    ConfigMap::new(&mounted, configuration);
    cluster.server.write_kubeconfig(&mounted.join("..data/kubeconfig.conf"));
    symlink("..data/kubeconfig.conf", mounted.join("kubeconfig.conf")).unwrap();
    let mut command = namespace.0.command("unshare");
    command.args(["--mount", "sh", "-c", CONTAINER, "sh"]).args([bin, mounted]);
    // The kubelet fills the variable in.
    command.args(COMMAND.map(|argument| argument.replace("$(NODE_NAME)", NODE)));
    Program::spawn(command)
}

#[test]
fn every_release_starts_unchanged() {
    run(|namespace| async move {
        let cluster = Cluster::start().await;
        load::fill(cluster.server.store(), 3, 2);
        let mut minors: Vec<u32> = Vec::new();
        for (releases, written) in CONFIGURATIONS {
            minors.extend(releases);
            let program = start(&cluster, &namespace, written);
            namespace.wait(HEALTH, "/readyz", |status, _| status == 200);
            namespace.wait_for_service_ports(3);
            let rules = namespace.list("ruleset");
            let ip = load::cluster_ip(0).to_string();
            assert!(
                rules.contains(&ip) && rules.contains("10.244.0.0/16"),
                "{releases:?}: {rules}"
            );
            let (_, log) = program.terminate();
            let strict = log.lines().find(|line| line.contains("strict decoding"));
            assert_eq!(strict, None, "{releases:?}: a field that nobody knows");
            assert!(log.contains("as nodePortAddresses: [0.0.0.0/0, "), "{log}");
            namespace.0.output("nft", &["flush", "ruleset"], "").unwrap();
        }
        assert_eq!(minors, (28..=37).collect::<Vec<u32>>());
        let agent = cluster.server.user_agent().unwrap();
        assert!(agent.starts_with("kube-proxy/v1.37.0 (linux/"), "{agent}");
    });
}
