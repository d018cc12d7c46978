//! As an ordinary user who has one capability, as the DaemonSets in `deploy/` run it.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, process::Command};

use packet_rig::{EchoServer, Outcome, Probe, Protocol};
use tempfile::TempDir;

use crate::{
    manifests::{NODE, service, slice},
    namespace::{HEALTH, Namespace, Program, until},
};

/// Starts what follows as user 65532 without any capability, and with at most one to gain.
pub(crate) const AS_USER: &str = "--reuid 65532 --regid 65532 --clear-groups --inh-caps=-all \
                       --bounding-set=-all,+net_admin --";

/// Starts what follows as user 65532 with CAP_NET_ADMIN and nothing else, now or later.
pub(crate) const WITH_CAPABILITY: &str = "--reuid 65532 --regid 65532 --clear-groups --no-new-privs --inh-caps=-all,+net_admin \
     --ambient-caps=-all,+net_admin --bounding-set=-all,+net_admin --";

/// The program and a manifest of a node, for everybody to read.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
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

    pub(crate) fn program(&self) -> PathBuf {
        self.0.path().join("switchyard")
    }

    fn manifests(&self) -> String {
        format!("--manifests={}", self.0.path().join("manifests").display())
    }

    /// The program in the namespace, after `setpriv` with these arguments.
    pub(crate) fn command(&self, namespace: &Namespace, setpriv: &str) -> Command {
        let mut command = namespace.0.command("setpriv");
        command.args(setpriv.split(' ')).arg(self.program());
        command
    }

    /// Runs the program after `setpriv` with these arguments until it is healthy and `done`.
    #[track_caller]
    fn run(&self, namespace: &Namespace, setpriv: &str, mode: &str, done: impl Fn() -> bool) {
        let mut command = self.command(namespace, setpriv);
        command.args([&self.manifests(), "--hostname-override=node-1"]);
        command.arg(format!("--proxy-mode={mode}"));
        let _program = Program::spawn(command);
        namespace.wait(HEALTH, "/readyz", |status, _| status == 200);
        until(mode, done);
    }
}

#[test]
fn one_capability_is_enough() {
    let namespace = Namespace::new();
    Place::new().run(&namespace, WITH_CAPABILITY, "nftables", || {
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
        let saved = namespace.listing("iptables-nft-save", &["-t", "nat"]);
        saved.contains(":KUBE-SERVICES ")
    };
    place.run(&namespace, AS_USER, "iptables", chains);
    place.run(&namespace, AS_USER, "nftables", || !chains());
}

#[test]
fn without_the_capability_programs_end_and_name_it() {
    let namespace = Namespace::new();
    let place = Place::new();
    let manifests = place.manifests();
    let master = "--master=http://127.0.0.1:1";
    let other = "; without CAP_NET_ADMIN, --proxy-mode userspace serves clients on this machine";
    for (arguments, status, expected) in [
        (&[&*manifests][..], 1, &["nftables: needs CAP_NET_ADMIN; ", other][..]),
        (&[&manifests, "--proxy-mode=nftables"], 1, &["node: needs CAP_NET_ADMIN", other]),
        (&[&manifests, "--proxy-mode=iptables", "--init-only"], 1, &["Permission denied", other]),
        (&[master, "--proxy-mode=userspace", "--init-only"], 1, &["could not set conntrack"]),
        (&["verify", &manifests], 3, &["switchyard verify: verifying needs CAP_NET_ADMIN"]),
    ] {
        let output = place.command(&namespace, AS_USER).args(arguments).output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?} {log}");
        assert!(expected.iter().all(|part| log.contains(part)), "{arguments:?} {log}");
    }
}

#[test]
fn owned_addresses_need_the_privilege_to_listen_on_every_port() {
    let namespace = Namespace::new();
    let place = Place::new();
    let start = || {
        let mut command = place.command(&namespace, WITH_CAPABILITY);
        command.args([
            &place.manifests(),
            "--hostname-override=node-1",
            "--proxy-mode=userspace",
            "--userspace-capture=addresses",
        ]);
        Program::spawn(command)
    };
    let (status, log) = start().ended();
    assert!(!status.success());
    assert!(log.contains("ports below 1024 cannot be listened on"), "{log}");
    namespace.0.sysctl(&[("ipv4/ip_unprivileged_port_start", "0")]).unwrap();
    let _program = start();
    namespace.wait(HEALTH, "/readyz", |status, _| status == 200);
}

/// Mounts `/proc/sys` read-only, as in a container without privileges, before what follows.
const READ_ONLY_SYSCTLS: &str = "mount --bind /proc/sys /proc/sys && \
     mount -o remount,bind,ro /proc/sys && exec \"$@\"";

#[test]
fn without_its_setting_localhost_is_left_out() {
    for (mode, prepared) in [("nftables", "0"), ("nftables", "1"), ("iptables", "0")] {
        let namespace = Namespace::new();
        let place = Place::new();
        let spec = "type: NodePort, clusterIP: 10.96.0.10, ports: [{port: 80, nodePort: 30080}]";
        let web = service("web", spec) + &slice("web", "8080", "{addresses: [192.0.2.1]}");
        fs::write(place.0.path().join("manifests/web.yaml"), web).unwrap();
        namespace.0.sysctl(&[("ipv4/conf/all/route_localnet", prepared)]).unwrap();
        let _server = EchoServer::start(&namespace.0, "web", 8080, &[Protocol::Tcp]).unwrap();
        let mut command = namespace.0.command("unshare");
        command
            .args(["-m", "sh", "-c", READ_ONLY_SYSCTLS, "sh"])
            .arg(place.program())
            .arg(place.manifests())
            .args(["--hostname-override=node-1", "--nodeport-addresses=primary,localhost"])
            .arg(format!("--proxy-mode={mode}"));
        let program = Program::spawn(command);
        namespace.wait_for_service_ports(1);
        let reaches = |address: &str| {
            let target = format!("tcp://{address}:30080").parse().unwrap();
            Probe::new(target).run(&namespace.0).unwrap()
        };
        assert_eq!(reaches("192.0.2.1").endpoint(), Some("web"));
        let at_localhost = reaches("127.0.0.1");
        let (_, log) = program.terminate();
        let warned = log.contains("\"Localhost node ports disabled; ");
        if prepared == "1" {
            assert_eq!(at_localhost.endpoint(), Some("web"), "{log}");
            assert!(!warned, "{log}");
        } else {
            // A connection would hang.
            assert_eq!(at_localhost, Outcome::Refused, "{log}");
            assert!(warned, "{log}");
        }
    }
}
