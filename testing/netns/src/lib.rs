//! Network namespaces of single threads, for tests and benchmarks that talk to the kernel
//! themselves. A namespace and its contents disappear with the thread, however the thread ends;
//! nothing is written below `/run/netns`. Root is needed.
//!
//! Tests that put several hosts together use `packet_rig::NetNs`.
//!
//! [`run`] runs a program. [`nft_trixie`] brings a second version of nft, and [`RefusableIptables`]
//! has the programs of iptables fail. [`wait`] repeats a look at what another program does.
//! [`skipped`] records a test that this machine cannot run. [`Tun`] is an interface for packets of
//! a test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what tests are made of fails by panics"
)]

mod iptables;
mod nft;
mod rules;
mod run;
mod skipped;
mod tun;
pub mod wait;

use std::{fs, io, panic, thread};

pub use self::{
    iptables::RefusableIptables,
    nft::nft_trixie,
    rules::{iptables_lines, nft_lines},
    run::{run, run_command, run_with, try_run},
    skipped::{skipped, skipped_test},
    tun::Tun,
};

/// The reason of tests that are skipped without root.
const NEEDS_ROOT: &str = "root is needed";

/// Runs `work` in a thread with a new network namespace, in which no interface is up. A panic of
/// `work` is passed on. Without root, the test is skipped, and `work` not run.
pub fn in_namespace<T: Send + Default>(work: impl FnOnce() -> T + Send) -> T {
    let body = || match unshare() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            skipped(NEEDS_ROOT);
            T::default()
        }
        result => {
            result.expect("a network namespace");
            work()
        }
    };
    // The name is that of the test, which messages about panics and skipped tests show.
    let name = thread::current().name().unwrap_or("namespace").to_owned();
    let thread = thread::Builder::new().name(name);
    thread::scope(|scope| thread.spawn_scoped(scope, body).expect("a thread").join())
        .unwrap_or_else(|panic| panic::resume_unwind(panic))
}

/// Moves this thread, which must not be used for anything else afterwards, to a new network
/// namespace.
///
/// # Panics
///
/// If the kernel refuses, as it does without root.
pub fn enter_new_namespace() {
    unshare().expect("a network namespace, which needs root");
}

fn unshare() -> io::Result<()> {
    // SAFETY: unshare takes no pointers, and moves only this thread.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Switches IPv6 off or on, on a device or on those to come (`default`).
///
/// # Panics
///
/// If there is no such device.
pub fn switch_ipv6(device: &str, is_on: bool) {
    let path = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
    fs::write(path, if is_on { "0" } else { "1" }).expect("a device");
}

/// Keeps this thread, and the programs that it starts from now on, from loading kernel modules,
/// which would be loaded for the whole machine. The kernel itself still loads what it needs to
/// answer.
///
/// # Panics
///
/// If the kernel refuses, as it does without root.
pub fn forbid_modules() {
    /// `CAP_SYS_MODULE` of `linux/capability.h`.
    const LOAD_MODULES: libc::c_ulong = 16;
    // SAFETY: prctl takes no pointers here, and changes only this thread.
    let result = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, LOAD_MODULES, 0, 0, 0) };
    assert_eq!(result, 0, "cannot drop a capability: {}", io::Error::last_os_error());
}

#[cfg(test)]
mod kernel_tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn programs_cannot_load_modules() {
        let capabilities = || {
            let output = Command::new("grep").args(["CapEff", "/proc/self/status"]).output();
            let line = String::from_utf8(output.unwrap().stdout).unwrap();
            u64::from_str_radix(line.split_whitespace().next_back().unwrap(), 16).unwrap()
        };
        in_namespace(|| {
            let before = capabilities();
            forbid_modules();
            assert_eq!(capabilities(), before & !(1 << 16));
        });
    }

    #[test]
    fn the_thread_has_the_name_of_the_test() {
        let name = || thread::current().name().map(str::to_owned);
        let test = name();
        in_namespace(|| assert_eq!(name(), test));
    }
}
