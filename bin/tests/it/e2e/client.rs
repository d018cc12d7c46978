//! `e2e/client.sh` itself, with a server on this machine.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, UdpSocket},
    os::unix::fs::PermissionsExt,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use packet_rig::wait::until;
use tempfile::TempDir;

use super::root;

/// A server that answers every HTTP request with its name, after a `/slow` one never.
fn serve_http() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut request = [0; 1024];
                let length = stream.read(&mut request).unwrap();
                if request[..length].starts_with(b"GET /slow") {
                    thread::sleep(Duration::from_secs(5));
                }
                let status = if request[..length].starts_with(b"GET /healthz") {
                    "503 Service Unavailable"
                } else {
                    "200 OK"
                };
                let answer = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: 5\r\nConnection: close\r\n\r\nweb-1"
                );
                _ = stream.write_all(answer.as_bytes());
            });
        }
    });
    port
}

/// A port on which nothing listens.
fn closed_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn run_client(directory: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.arg(root().join("e2e/client.sh")).args(arguments);
    command.env("E2E_CLIENT_DIRECTORY", directory.path()).output().unwrap()
}

fn client(directory: &TempDir, arguments: &[&str]) -> String {
    let output = run_client(directory, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn requests_end_in_one_word_each() {
    let directory = TempDir::new().unwrap();
    let (open, closed) = (serve_http(), closed_port());
    let url = |port: u16, path: &str| format!("http://127.0.0.1:{port}{path}");
    let (good, bad, slow) = (url(open, "/hostname"), url(closed, "/"), url(open, "/slow"));
    let output = client(&directory, &["get", "2", &good, &bad]);
    assert_eq!(output, "ok web-1\nok web-1\nrefused\nrefused\n");
    assert_eq!(client(&directory, &["get", "1", &slow]), "timeout\n");
    let output = client(&directory, &["status", &url(open, "/healthz"), &good, &bad]);
    assert_eq!(output, "503\n200\nrefused\n");
}

#[test]
fn udp_ends_in_one_word() {
    let directory = TempDir::new().unwrap();
    let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    let port = socket.local_addr().unwrap().port().to_string();
    thread::spawn(move || {
        let mut request = [0; 64];
        let (length, from) = socket.recv_from(&mut request).unwrap();
        assert_eq!(&request[..length], b"hostname\n");
        socket.send_to(b"web-2", from).unwrap();
    });
    assert_eq!(client(&directory, &["udp", "127.0.0.1", &port]), "ok web-2\n");
    let closed = closed_port().to_string();
    assert_eq!(client(&directory, &["udp", "127.0.0.1", &closed]), "timeout\n");
}

#[test]
fn a_load_counts_what_is_lost_and_ends_when_it_is_told_or_by_itself() {
    let directory = TempDir::new().unwrap();
    let (open, closed) = (serve_http(), closed_port());
    let (good, bad) = (format!("http://127.0.0.1:{open}/"), format!("http://127.0.0.1:{closed}/"));
    let counts = |output: &str| -> (usize, usize) {
        let (total, lost) = output.lines().next().unwrap().split_once(' ').unwrap();
        (total.parse().unwrap(), lost.parse().unwrap())
    };
    let start = Instant::now();
    assert_eq!(client(&directory, &["load-start", "60", &good, &bad]), "");
    // As `kubectl exec`, this test waits for the end of all that has its output open.
    assert!(start.elapsed() < Duration::from_secs(50), "the load kept its caller waiting");
    until("two requests are lost", || {
        let lost = fs::read_to_string(directory.path().join("lost"));
        lost.is_ok_and(|lines| lines.lines().count() > 1)
    });
    let output = client(&directory, &["load-stop"]);
    let (total, lost) = counts(&output);
    assert!(total > 2 && lost * 2 == total, "{output}");
    assert!(output.lines().nth(1).unwrap().ends_with(&format!("{bad} refused")), "{output}");
    // A second load counts from 0, and has an end of its own.
    client(&directory, &["load-start", "1", &good]);
    until("the load has ended", || directory.path().join("counted").exists());
    let (total, lost) = counts(&client(&directory, &["load-stop"]));
    assert!(total > 0 && lost == 0, "{total} {lost}");
}

#[test]
fn names_are_asked_for_in_the_clusters_own_domain() {
    let directory = TempDir::new().unwrap();
    let resolv = directory.path().join("resolv.conf");
    fs::write(&resolv, "search ns.svc.k8s.test svc.k8s.test k8s.test other.test\nnameserver ::1\n")
        .unwrap();
    let dig = directory.path().join("dig");
    fs::write(&dig, "#!/bin/sh\necho \"$*\"\n").unwrap();
    fs::set_permissions(&dig, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    for (protocol, option) in [("udp", "+notcp"), ("tcp", "+tcp")] {
        let output = Command::new("sh")
            .arg(root().join("e2e/client.sh"))
            .args(["dns", protocol, "AAAA", "fd00::a"])
            .env("PATH", &path)
            .env("E2E_RESOLV_CONF", &resolv)
            .output()
            .unwrap();
        let expected = format!(
            "+short +time=2 +tries=2 {option} @fd00::a kubernetes.default.svc.k8s.test. AAAA\n"
        );
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }
}

#[test]
fn a_server_is_ready_if_it_listens_and_nothing_forbids_it() {
    let directory = TempDir::new().unwrap();
    let (open, closed) = (serve_http().to_string(), closed_port().to_string());
    let is_ready = |port| run_client(&directory, &["is-ready", port]).status.success();
    assert_eq!([is_ready(&open), is_ready(&closed)], [true, false]);
    client(&directory, &["not-ready"]);
    assert_eq!([is_ready(&open), is_ready(&closed)], [false, false]);
    client(&directory, &["ready"]);
    assert_eq!([is_ready(&open), is_ready(&closed)], [true, false]);
}
