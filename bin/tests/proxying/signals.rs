//! Endings by signals, and the rules that stay.

use std::{
    fs,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
};

use test_netns::{
    in_namespace, run,
    wait::{PATIENCE, until_ok},
};

use crate::{
    manifests::{Manifests, service, slice},
    namespace::{HEALTH, Namespace, Program},
};

/// Starts the program by `command`, sends a signal to the process that `find` finds when it
/// proxies, and returns how it ended and what it logged.
fn end_by(
    namespace: &Namespace,
    signal: &str,
    mut command: Command,
    find: fn(u32) -> u32,
) -> (ExitStatus, String) {
    let manifests = Manifests::new(&service("web", "clusterIP: 10.96.0.10, ports: [{port: 80}]"));
    command.args(manifests.arguments());
    let program = Program::spawn(command);
    namespace.wait_for_service_ports(1);
    let process = find(program.id()).to_string();
    assert!(Command::new("kill").args(["-s", signal, &process]).status().unwrap().success());
    program.ended()
}

/// That no one is there any more, and that its rules are.
fn assert_rules_stay(namespace: &Namespace) {
    let rules = namespace.list("table ip kube-proxy");
    assert!(rules.contains("10.96.0.10"), "{rules}");
}

#[test]
fn signals_have_their_default_effect_and_rules_stay() {
    let namespace = Namespace::new();
    for (signal, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        // Whoever runs the tests may ignore some, which is inherited.
        let mut command = namespace.0.command("env");
        let program = env!("CARGO_BIN_EXE_switchyard");
        command.args(["--default-signal", program, "--proxy-mode=nftables"]);
        let (status, log) = end_by(&namespace, signal, command, |program| program);
        assert_eq!(status.signal(), Some(number), "{log}");
        assert_rules_stay(&namespace);
    }
}

/// A supervisor that waits for no child may have SIGCHLD ignored.
#[test]
fn programs_have_an_exit_status_though_their_end_is_ignored() {
    let namespace = Namespace::new();
    let mut command = namespace.0.command("env");
    let program = env!("CARGO_BIN_EXE_switchyard");
    command.args(["--default-signal", "--ignore-signal=CHLD", program, "--proxy-mode=iptables"]);
    let (status, log) = end_by(&namespace, "TERM", command, |program| program);
    assert_eq!(status.signal(), Some(15), "{log}");
}

#[test]
fn new_connections_wait_for_the_next_start_though_the_old_ones_end_at_once() {
    let namespace = Namespace::new();
    let mut command = namespace.0.command("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_switchyard"), "--proxy-mode=userspace"]);
    command.args(["--userspace-capture=nftables", "--userspace-drain=0s"]);
    let (status, log) = end_by(&namespace, "TERM", command, |program| program);
    assert_eq!(status.signal(), Some(15), "{log}");
    namespace.list("table ip switchyard-pause");
}

/// Connections end in their own time, and no one else's.
#[test]
fn userspace_mode_lets_connections_end_before_it_does() {
    in_namespace(|| {
        run("ip link set lo up");
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in server.incoming() {
                let stream = stream.unwrap();
                thread::spawn(move || io::copy(&mut &stream, &mut &stream));
            }
        });
        let objects = service(
            "web",
            "type: NodePort, clusterIP: 10.96.0.10, ports: [{port: 80, nodePort: 30080}]",
        ) + &slice("web", &port.to_string(), "{addresses: [127.0.0.1]}");
        let manifests = Manifests::new(&objects);
        let config = Path::new(manifests.path()).join("config.conf");
        let configure = |format: &str| {
            let text = format!(
                "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                 logging: {{format: {format}}}\n"
            );
            fs::write(&config, text).unwrap();
        };
        let start = |drain: &str| {
            configure("text");
            let mut command = Command::new("env");
            command.args(["--default-signal", env!("CARGO_BIN_EXE_switchyard"), drain]);
            command.args(manifests.arguments()).stdout(Stdio::null());
            command.arg("--config").arg(&config);
            command.args(["--proxy-mode=userspace", "--userspace-capture=loopback"]);
            Program::spawn(command)
        };
        let terminate = |program: &Program| {
            run(&format!("kill -s TERM {}", program.id()));
        };
        let connect = || TcpStream::connect("127.0.0.1:30080");
        let ask = |mut stream: &TcpStream| {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(b"?").and_then(|()| stream.read_exact(&mut [0]))
        };

        let health = |status: &str| match TcpStream::connect(HEALTH) {
            Ok(mut health) => {
                let mut answer = String::new();
                health.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
                health.read_to_string(&mut answer).unwrap();
                if answer.contains(status) { Ok(()) } else { Err(answer) }
            }
            Err(error) => Err(error.to_string()),
        };

        let program = start("--userspace-drain=10m");
        let client = until_ok(connect);
        ask(&client).unwrap();
        until_ok(|| health(" 200 "));
        terminate(&program);
        until_ok(|| health(" 503 "));
        ask(&client).expect("the connection goes on");
        ask(&connect().unwrap()).expect("there is no one else to serve new ones");
        drop(client);
        let (status, log) = program.ended();
        assert_eq!(status.signal(), Some(15), "{log}");

        let begins_to_end = || until_ok(|| health(" 503 "));
        let by_signal = |program: &Program| {
            terminate(program);
            // A second signal before the first is handled would be one with it.
            begins_to_end();
            terminate(program);
        };
        // What needs a restart.
        let by_configuration = |program: &Program| {
            configure("json");
            begins_to_end();
            terminate(program);
        };
        type End<'a> = &'a dyn Fn(&Program);
        for (drain, end) in [
            ("--userspace-drain=0s", &terminate as End<'_>),
            ("--userspace-drain=10m", &by_signal),
            ("--userspace-drain=10m", &by_configuration),
        ] {
            let program = start(drain);
            let client = until_ok(connect);
            ask(&client).unwrap();
            until_ok(|| health(" 200 "));
            end(&program);
            let (status, log) = program.ended();
            assert!(status.signal() == Some(15), "{status:?} {log}");
            let error = ask(&client).expect_err("the connection is cut");
            assert_ne!(error.kind(), io::ErrorKind::UnexpectedEof, "it looks cut");
        }
    });
}

#[test]
fn the_first_process_of_a_container_ends_too() {
    let namespace = Namespace::new();
    for (signal, expected) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let mut command = namespace.0.command("unshare");
        command.args(["--pid", "--fork", "--kill-child"]).arg(env!("CARGO_BIN_EXE_switchyard"));
        command.arg("--proxy-mode=nftables");
        let only_child = |parent: u32| {
            let path = format!("/proc/{0}/task/{0}/children", parent);
            fs::read_to_string(path).unwrap().trim().parse().unwrap()
        };
        let (status, log) = end_by(&namespace, signal, command, only_child);
        assert_eq!(status.code(), Some(expected), "SIG{signal}: {status:?}\n{log}");
        assert_rules_stay(&namespace);
    }
}
