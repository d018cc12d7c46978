//! Tests of the handle on the proxy, with small scripts in the proxy's place.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::Path,
    time::Duration,
};

use packet_rig::{NetNs, Proxy, ProxyOptions, WorkDir, wait::until_ok};

fn start(directory: &WorkDir, script: &str) -> Proxy {
    let path = directory.replace("bin", "proxy", &format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let manifests = directory.directory("manifests").unwrap();
    let log = directory.path().join("log");
    let options = ProxyOptions::new(path, "nftables", manifests, log);
    Proxy::start(&NetNs::new().unwrap(), options).unwrap()
}

fn wait_for_log(proxy: &Proxy, text: &str) {
    until_ok(|| match proxy.log() {
        log if log.contains(text) => Ok(()),
        log => Err(format!("{text} is not in the log: {log}")),
    });
}

fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn it_is_terminated_and_if_that_does_not_help_killed() {
    let directory = WorkDir::new("stop").unwrap();
    let mut polite = start(&directory, "echo up >&2; exec sleep 60");
    wait_for_log(&polite, "up");
    assert_eq!(polite.stop().unwrap().signal(), Some(libc::SIGTERM));
    assert!(polite.stop().is_none());

    let mut stubborn = start(&directory, "trap '' TERM; echo deaf >&2; while :; do sleep 1; done");
    wait_for_log(&stubborn, "deaf");
    let pid = stubborn.pid().unwrap();
    assert_eq!(stubborn.stop().unwrap().signal(), Some(libc::SIGKILL));
    assert!(!is_running(pid));
}

#[test]
fn dropping_it_ends_it_and_threads_that_end_do_not() {
    let directory = WorkDir::new("drop").unwrap();
    let proxy = std::thread::scope(|scope| {
        scope.spawn(|| start(&directory, "echo up >&2; exec sleep 60")).join().unwrap()
    });
    wait_for_log(&proxy, "up");
    let pid = proxy.pid().unwrap();
    assert!(is_running(pid));
    drop(proxy);
    assert!(!is_running(pid));
}

#[test]
fn one_that_ends_or_never_becomes_ready_is_reported() {
    let directory = WorkDir::new("ready").unwrap();
    let mut ends = start(&directory, "exit 3");
    let error = ends.wait_ready(Duration::from_secs(10)).unwrap_err().to_string();
    assert_eq!(error, "the proxy ended (exit status: 3)");
    let mut idle = start(&directory, "exec sleep 60");
    let error = idle.wait_ready(Duration::from_millis(200)).unwrap_err().to_string();
    assert!(error.starts_with("the proxy was not ready after 2"), "{error}");
}
