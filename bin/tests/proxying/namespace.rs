//! Network namespaces, and the program in them.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::TcpStream,
    os::unix::{
        fs::{FileExt, PermissionsExt},
        process::ExitStatusExt,
    },
    path::Path,
    process::{Child, Command, ExitStatus},
    time::Instant,
};

pub(crate) use packet_rig::wait::{until, until_ok};
use packet_rig::{
    NetNs, http,
    wait::{PATIENCE, PERIOD, listing},
};

/// A namespace that is gone when this value is.
pub(crate) struct Namespace(pub(crate) NetNs);

impl Namespace {
    /// With a loopback interface that has 192.0.2.1 too, and without kernel modules to load: those
    /// are of the host, whatever the namespace.
    pub(crate) fn new() -> Self {
        let mut namespace = NetNs::new().unwrap();
        let programs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("without-modules");
        put_program(&programs, "modprobe", "exit 1");
        namespace.add_programs(&programs);
        namespace.ip("addr add 192.0.2.1/32 dev lo\n").unwrap();
        Self(namespace)
    }

    /// The program, to be run in the namespace.
    pub(crate) fn switchyard(&self, arguments: &[&str]) -> Command {
        let mut command = self.0.command(env!("CARGO_BIN_EXE_switchyard"));
        command.args(arguments);
        command
    }

    /// The exit status of the program, and what it prints.
    pub(crate) fn answer(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.switchyard(arguments).output().unwrap();
        // For the case that the test fails.
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    }

    /// Returns a command that runs a program in the namespace, for which the kernel has no IPVS,
    /// even if the host has loaded it: what the program finds in `/proc/net` is empty but for a
    /// sign of IPv6.
    pub(crate) fn without_ipvs(&self, program: &Path) -> Command {
        const HIDE: &str = "mount -t tmpfs none /proc/$$/net && >/proc/$$/net/if_inet6 && \
                            exec \"$0\" \"$@\"";
        let mut command = self.0.command("unshare");
        command.args(["--mount", "sh", "-c", HIDE]).arg(program);
        command
    }

    /// The listing of nft.
    #[track_caller]
    pub(crate) fn list(&self, what: &str) -> String {
        let arguments: Vec<&str> = ["list"].into_iter().chain(what.split(' ')).collect();
        self.listing("nft", &arguments)
    }

    /// The output of a program that lists rules, which may change in the meantime.
    #[track_caller]
    pub(crate) fn listing(&self, program: &str, arguments: &[&str]) -> String {
        listing(&self.0, program, arguments)
    }

    /// Status and body of an answer, if there is one.
    pub(crate) fn get(&self, server: &str, path: &str) -> Option<(u16, String)> {
        let answer = http::get(&self.0, server.parse().unwrap(), path).ok()?;
        Some((answer.status, answer.body))
    }

    /// Sends a request with these headers, and returns the answer: its head, and what follows.
    pub(crate) fn ask(
        &self,
        server: &str,
        request: &str,
        headers: &[&str],
        body: &str,
    ) -> (String, Vec<u8>) {
        let ask = || {
            let mut stream = TcpStream::connect(server).unwrap();
            let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
            let length = body.len();
            let head = format!("{request} HTTP/1.0\r\n{headers}Content-Length: {length}\r\n\r\n");
            stream.write_all((head + body).as_bytes()).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            answer
        };
        let answer = self.0.run(ask).unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        (String::from_utf8(answer[..end].to_vec()).unwrap(), answer[end + 4..].to_vec())
    }

    /// Waits until an answer satisfies `good`.
    #[track_caller]
    pub(crate) fn wait(
        &self,
        server: &str,
        path: &str,
        good: impl Fn(u16, &str) -> bool,
    ) -> String {
        until_ok(|| match self.get(server, path) {
            Some((status, body)) if good(status, &body) => Ok(body),
            other => Err(format!("{server}{path}: {other:?}")),
        })
    }

    /// Waits until so many Service ports of IPv4 are programmed, and returns all metrics.
    #[track_caller]
    pub(crate) fn wait_for_service_ports(&self, count: u32) -> String {
        self.wait(METRICS, "/metrics", |_, text| service_ports(text) == Some(count))
    }
}

/// Writes a script to the directory, as a whole: tests run at the same time.
pub(crate) fn put_program(directory: &Path, name: &str, script: &str) {
    fs::create_dir_all(directory).unwrap();
    let new = tempfile::NamedTempFile::new_in(directory).unwrap();
    fs::write(new.path(), format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(new.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Closed before it gets its name: a file that is open for writing cannot be run.
    new.into_temp_path().persist(directory.join(name)).unwrap();
}

/// The program, ended with this value.
pub(crate) struct Program {
    child: Child,
    /// A file, since nothing reads a pipe while the program runs.
    log: File,
}

impl Program {
    pub(crate) fn start(namespace: &Namespace, arguments: &[&str]) -> Self {
        Self::spawn(namespace.switchyard(arguments))
    }

    /// Starts it by a command that says the rest.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let log = tempfile::tempfile().unwrap();
        command.stderr(log.try_clone().unwrap());
        Self { child: command.spawn().unwrap(), log }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the log has a line that satisfies `good`.
    #[track_caller]
    pub(crate) fn wait_for_line(&self, good: impl Fn(&str) -> bool) {
        until_ok(|| {
            let log = self.log();
            if log.lines().any(&good) { Ok(()) } else { Err(log) }
        });
    }

    /// Sends SIGTERM; the number of the signal that ended it, and its log.
    pub(crate) fn terminate(mut self) -> (Option<i32>, String) {
        let kill = format!("kill -TERM {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        let status = self.child.wait().unwrap();
        (status.signal(), self.log())
    }

    /// Waits until it has ended by itself; its status, and its log.
    #[track_caller]
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let ended = || self.child.try_wait().unwrap().ok_or("it is still running".to_owned());
        let status = until_ok(ended);
        (status, self.log())
    }

    /// The log so far.
    fn log(&self) -> String {
        // The program writes at the position of the file, which has to stay.
        let mut log = vec![0; self.log.metadata().unwrap().len().try_into().unwrap()];
        self.log.read_exact_at(&mut log, 0).unwrap();
        String::from_utf8(log).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does the same as [`until_ok`] in a task.
pub(crate) async fn until_ok_async<T>(mut look: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(instead) => {
                assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {instead}");
            }
        }
        tokio::time::sleep(PERIOD).await;
    }
}

pub(crate) const HEALTH: &str = "127.0.0.1:10256";
pub(crate) const METRICS: &str = "127.0.0.1:10249";

/// The number of Service ports of IPv4 that the metrics say are programmed.
fn service_ports(metrics: &str) -> Option<u32> {
    let name = "switchyard_service_ports{ip_family=\"IPv4\"} ";
    metrics.lines().find_map(|line| line.strip_prefix(name))?.parse().ok()
}
