//! The nft of Debian's next release, for tests of what older and newer programs make of a ruleset.

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use crate::{NEEDS_ROOT, skipped};

/// With the value 1, what needs a package mirror is skipped on machines that reach none.
const OFFLINE: &str = "SWITCHYARD_OFFLINE";

/// Returns Debian trixie's nft 1.1.3, which is fetched into `directory` and unpacked there, with
/// its own libc, unless it is there already. `None` without root, or if nft cannot be fetched and
/// `SWITCHYARD_OFFLINE` is 1: then the test is recorded as [`skipped`].
///
/// # Panics
///
/// If nft cannot be fetched otherwise.
pub fn nft_trixie(directory: &Path) -> Option<PathBuf> {
    static FETCHED: OnceLock<Result<PathBuf, &str>> = OnceLock::new();
    FETCHED.get_or_init(|| fetch(directory)).clone().inspect_err(|reason| skipped(reason)).ok()
}

/// Fetches the program, or returns why a test that needs it is skipped.
fn fetch(directory: &Path) -> Result<PathBuf, &'static str> {
    let directory = directory.join("nft-trixie");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("fetch-nft-trixie.sh");
    let output = match outside(Command::new(script).arg(&directory)).output() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(NEEDS_ROOT),
        output => output.expect("a shell"),
    };
    if output.status.success() {
        return Ok(directory.join("nft"));
    }
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(
        std::env::var_os(OFFLINE).is_some_and(|value| value == "1"),
        "cannot fetch nft 1.1.3 ({OFFLINE}=1 skips what needs it): {why}"
    );
    Err("nft 1.1.3 cannot be fetched")
}

/// Makes `command` run in the network namespace of the process, which reaches the network, whatever
/// the namespace of this thread.
fn outside(command: &mut Command) -> &mut Command {
    // This is the namespace of the first thread of the process, which no test moves.
    let namespace = File::open("/proc/self/ns/net").expect("this process has a namespace");
    // SAFETY: setns is safe to call between fork and exec, and the file outlives the closure.
    unsafe {
        command.pre_exec(move || match libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        })
    }
}
