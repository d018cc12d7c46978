//! Network namespaces without names.
//!
//! A namespace lives as long as a file descriptor, a process or a socket refers to it. [`NetNs`]
//! holds the descriptor, and nothing is written below `/run/netns`: when the test process ends,
//! however it ends, the kernel removes every namespace it made, with links, rules and connections.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    panic,
    path::{Path, PathBuf},
    process::{self, Command, Output, Stdio},
    sync::Arc,
    thread,
};

use crate::{
    error::{Result, RigError},
    spawn,
};

/// A handle on a network namespace. Clones refer to the same namespace; dropping the last clone
/// removes the namespace.
#[derive(Clone, Debug)]
pub struct NetNs {
    fd: Arc<OwnedFd>,
    /// The `PATH` of programs in the namespace; `None` for that of this process.
    search_path: Option<OsString>,
}

impl NetNs {
    /// Makes a new, empty namespace with its loopback interface up.
    pub fn new() -> Result<Self> {
        let namespace = Self::new_bare()?;
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Makes a new namespace in which not even the loopback interface is up.
    pub fn new_bare() -> Result<Self> {
        let fd = on_new_thread(|| -> io::Result<OwnedFd> {
            // SAFETY: unshare has no memory effects; it moves only this short-lived thread.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(File::open("/proc/thread-self/ns/net")?.into())
        })
        .map_err(RigError::io("create a network namespace (root is needed)"))?;
        Ok(Self { fd: Arc::new(fd), search_path: None })
    }

    /// Lets commands of this handle, and of its clones, find programs in `directory` first, as if
    /// these were installed on the host.
    pub fn add_programs(&mut self, directory: &Path) {
        let inherited = env::var_os("PATH").unwrap_or_default();
        let mut path = directory.as_os_str().to_owned();
        path.push(":");
        path.push(self.search_path.as_ref().unwrap_or(&inherited));
        self.search_path = Some(path);
    }

    /// Runs `work` on a thread inside the namespace. A panic of `work` is passed on.
    ///
    /// A socket stays in the namespace that it was made in, so `work` may return a socket, which
    /// can be used anywhere.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        on_new_thread(|| {
            enter(self.fd.as_raw_fd())?;
            Ok(work())
        })
        .map_err(RigError::io("enter a network namespace (root is needed)"))
    }

    /// A command that will run inside the namespace. The process is killed when the thread that
    /// started it ends, so that nothing outlives a test; use [`crate::spawn::spawn`] for longer
    /// lives.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let fd = Arc::clone(&self.fd);
        let mut command = spawn::command(program);
        if let Some(path) = &self.search_path {
            command.env("PATH", path);
        }
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(move || enter(fd.as_raw_fd())) };
        command
    }

    /// Runs `program` inside with `input` on its standard input; an exit code other than 0 is an
    /// error.
    pub fn output(&self, program: &str, args: &[&str], input: &str) -> Result<String> {
        let start = || RigError::io(format!("run {program}"));
        let mut command = self.command(program);
        command.args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(start())?;
        let pipe = child.stdin.take();
        let Output { status, stdout, stderr } = thread::scope(|scope| {
            // Written beside the reading, or a program that answers early would block both sides.
            scope.spawn(move || pipe.map(|mut pipe| pipe.write_all(input.as_bytes())));
            child.wait_with_output()
        })
        .map_err(start())?;
        if status.success() {
            return Ok(String::from_utf8_lossy(&stdout).into_owned());
        }
        Err(RigError::Failed {
            command: format!("{program} {}", args.join(" ")),
            status,
            stderr: String::from_utf8_lossy(&stderr).trim().to_owned(),
        })
    }

    /// Runs lines of `ip` commands (without the word `ip`), all in one process.
    pub fn ip(&self, lines: &str) -> Result<()> {
        self.output("ip", &["-batch", "-"], lines).map(drop)
    }

    /// Loads a ruleset in nft's language.
    pub fn nft(&self, ruleset: &str) -> Result<()> {
        self.output("nft", &["-f", "-"], ruleset).map(drop)
    }

    /// Writes sysctls, each `name` below `/proc/sys/net` in slash form.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.run(|| {
            settings.iter().try_for_each(|(name, value)| {
                let path = PathBuf::from("/proc/sys/net").join(name);
                fs::write(&path, value).map_err(RigError::io(format!("write {}", path.display())))
            })
        })?
    }

    /// Reads a sysctl, whose name is as those of [`Self::sysctl`].
    pub fn setting(&self, name: &str) -> Result<String> {
        let path = format!("/proc/sys/net/{name}");
        Ok(self.output("cat", &[&path], "")?.trim().to_owned())
    }

    /// A path by which other processes of root can reach the namespace while this process lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", process::id(), self.fd.as_raw_fd()).into()
    }
}

/// Moves the calling thread into the namespace.
fn enter(fd: RawFd) -> io::Result<()> {
    // SAFETY: setns has no memory effects, and a bad descriptor is an error like any other.
    match unsafe { libc::setns(fd, libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs `work` on its own thread, because a thread that changed its namespace must not be
/// used for anything else.
fn on_new_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    match thread::scope(|scope| scope.spawn(work).join()) {
        Ok(value) => value,
        Err(panic) => panic::resume_unwind(panic),
    }
}
