//! Network namespaces, and the program in them.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    os::{fd::AsRawFd, unix::process::ExitStatusExt},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// A namespace that is gone when this process is, or this value.
pub(crate) struct Namespace {
    /// Holds the namespace open.
    keeper: Child,
}

impl Namespace {
    /// With a loopback interface that has 192.0.2.1 too.
    pub(crate) fn new() -> Self {
        let script =
            "ip link set lo up && ip addr add 192.0.2.1/32 dev lo && echo up && exec sleep 300";
        let mut keeper = Command::new("unshare")
            .args(["--net", "--kill-child", "--fork", "sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n", "these tests need root, and the programs unshare and ip");
        Self { keeper }
    }

    /// A command in the namespace.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        // The keeper is `unshare`, whose child is in the namespace too, as it is itself.
        command.arg(format!("--net=/proc/{}/ns/net", self.keeper.id())).arg("--").arg(program);
        command
    }

    /// Puts this thread, and what it starts from now on, into the namespace.
    pub(crate) fn enter(&self) {
        let file = File::open(format!("/proc/{}/ns/net", self.keeper.id())).unwrap();
        // SAFETY: the descriptor is open; the call changes only which namespace this thread is in.
        let result = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    /// What a command that succeeds prints.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Status and body of an answer, if there is one.
    pub(crate) fn get(&self, url: &str) -> Option<(u16, String)> {
        let write = "\n%{http_code}";
        let output =
            self.command("curl").args(["-s", "-m", "5", "-w", write, url]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n')?;
        Some((status.parse().ok().filter(|status| *status != 0)?, body.to_owned()))
    }

    /// Waits until an answer satisfies `good`.
    #[track_caller]
    pub(crate) fn wait(&self, url: &str, good: impl Fn(u16, &str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let answer = self.get(url);
            match answer {
                Some((status, body)) if good(status, &body) => return body,
                other if start.elapsed() > Duration::from_secs(20) => panic!("{url}: {other:?}"),
                _ => sleep(Duration::from_millis(50)),
            }
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// The program, ended with this value.
pub(crate) struct Program {
    child: Child,
}

impl Program {
    /// Starts it in the namespace.
    pub(crate) fn start(namespace: &Namespace, arguments: &[&str]) -> Self {
        let mut command = namespace.command(env!("CARGO_BIN_EXE_switchyard"));
        let child = command.args(arguments).stderr(Stdio::piped()).spawn().unwrap();
        Self { child }
    }

    /// Sends SIGTERM; the number of the signal that ended it, and its log.
    pub(crate) fn terminate(mut self) -> (Option<i32>, String) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let status = self.child.wait().unwrap();
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (status.signal(), log)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) const HEALTHZ: &str = "http://127.0.0.1:10256/healthz";
pub(crate) const METRICS: &str = "http://127.0.0.1:10249/metrics";

/// How many Service ports of IPv4 the metrics say are programmed.
pub(crate) fn service_ports(metrics: &str) -> Option<u32> {
    let name = "switchyard_service_ports{ip_family=\"IPv4\"} ";
    metrics.lines().find_map(|line| line.strip_prefix(name))?.parse().ok()
}
