//! This process: what signals do to it, what it passes on to the programs that it runs, the number
//! of files that it may open, and when the kernel kills it.

use std::{
    fs, io, process,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    process::{Resource, Rlimit, geteuid, getrlimit, setrlimit},
    thread::{CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities},
};
use signal_hook::{
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM},
    flag, low_level,
};
use switchyard_core::error::ErrorChain;
use tokio::signal::unix::SignalKind;

/// Has the kernel keep the exit status of programs that this one runs until the status is read,
/// also if the parent has SIGCHLD ignored, which is inherited: by a handler, as in Go's programs.
///
/// # Errors
/// If the handler cannot be installed.
pub fn keep_exit_statuses() -> io::Result<()> {
    flag::register(SIGCHLD, Arc::default()).map(drop)
}

/// Has signals end the program, if it is the first process of its PID namespace.
///
/// Elsewhere, signals have their default disposition: a signal ends the program at once, and the
/// rules in the kernel stay. The kernel delivers no signal to a first process that has no handler
/// for it, so that a pod would end only after its grace period. There, handlers end the program
/// with the status that a shell reports for the signal.
///
/// # Errors
/// If handlers cannot be installed.
pub fn end_by_signals() -> io::Result<()> {
    if process::id() != 1 {
        return Ok(());
    }
    for (signal, ends) in
        [(SIGHUP, always()), (SIGINT, always()), (SIGTERM, Arc::clone(&TERM_ENDS))]
    {
        // The handler calls `_exit`, so that a thread that hangs cannot delay the end.
        flag::register_conditional_shutdown(signal, 128 + signal, ends)?;
    }
    Ok(())
}

/// Whether SIGTERM ends the first process of a PID namespace at once.
static TERM_ENDS: LazyLock<Arc<AtomicBool>> = LazyLock::new(always);

fn always() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(true))
}

/// Returns a future that is ready at the first SIGTERM, which no longer ends the program by itself;
/// the second one does. Needs a runtime.
///
/// # Errors
/// If the handler cannot be installed.
pub fn terminated() -> io::Result<impl Future<Output = ()>> {
    let mut signals = tokio::signal::unix::signal(SignalKind::terminate())?;
    TERM_ENDS.store(false, Ordering::Relaxed);
    Ok(async move {
        signals.recv().await;
        end_by_next_term();
    })
}

/// Has the next SIGTERM end the program at once, after [`terminated`].
pub fn end_by_next_term() {
    if process::id() == 1 {
        TERM_ENDS.store(true, Ordering::Relaxed);
    } else if let Err(error) = flag::register_conditional_default(SIGTERM, always()) {
        tracing::warn!(err = %ErrorChain(&error), "SIGTERM will not end the program at once");
    }
}

/// Ends the program as SIGTERM does by itself.
pub fn end_as_terminated() -> ! {
    if process::id() != 1 {
        let _ = low_level::emulate_default_handler(SIGTERM);
    }
    low_level::exit(128 + SIGTERM)
}

/// Whether this process has CAP_NET_ADMIN.
pub fn may_administer_networks() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

/// Passes CAP_NET_ADMIN on to all programs that are run later, if this program has the capability.
/// Concerns the calling thread and the threads that it starts later.
///
/// A user other than root gets the capability from the file of the program. A program that such a
/// user runs inherits it only if it is in the ambient set; without it, iptables could not even list
/// the rules that kube-proxy left behind.
pub fn pass_on_privilege() {
    if let Err(error) = try_pass_on_privilege() {
        tracing::warn!(err = %ErrorChain(&error), "Failed to pass CAP_NET_ADMIN on to other programs");
    }
}

fn try_pass_on_privilege() -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    // Programs that root runs have root's capabilities.
    if geteuid().is_root() || !sets.permitted.contains(CapabilitySet::NET_ADMIN) {
        return Ok(());
    }
    sets.inheritable |= CapabilitySet::NET_ADMIN;
    set_capabilities(None, sets)?;
    configure_capability_in_ambient_set(CapabilitySet::NET_ADMIN, true)
}

/// Raises the soft limit of open files to the hard limit, which needs no privilege.
///
/// Container runtimes start programs with a soft limit of 1024 and a much larger hard limit. Go's
/// runtime, and so kube-proxy, raises the soft limit at the start; Rust's does not.
///
/// Go sets the original limit again for the programs that it starts, for the sake of programs that
/// use select(2), which cannot have descriptors from 1024 on. Programs that switchyard starts have
/// the raised limit: they inherit no descriptor but the standard streams, and none of iptables, nft
/// and modprobe opens more than a few. To set the limit again, each place that starts a program, in
/// several crates and in the client of the API server, would need code between fork and exec.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let (from, to) = (text(limit.current), text(limit.maximum));
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        Ok(()) => tracing::debug!(from, to, "Raised RLIMIT_NOFILE"),
        Err(error) => {
            let err = ErrorChain(&error);
            tracing::warn!(%err, from, to, "Failed to raise RLIMIT_NOFILE");
        }
    }
}

fn text(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

/// Sets the OOM score of this process: the kernel kills processes with higher scores first. Without
/// the privilege to lower the score, which is only logged, the score stays as it is.
pub fn set_oom_score_adj(score: i32) {
    const PATH: &str = "/proc/self/oom_score_adj";
    let current = fs::read_to_string(PATH).ok().and_then(|text| text.trim().parse().ok());
    if current == Some(score) {
        return;
    }
    if let Err(error) = fs::write(PATH, score.to_string()) {
        tracing::debug!(err = %ErrorChain(&error), score, "Failed to set the OOM score");
    }
}
