//! The disposition of signals: the default one, so that a signal ends the program at once and the
//! rules in the kernel stay.
//!
//! The first process of a container is an exception: the kernel delivers no signal to a first
//! process that has no handler for it, so that the pod would end only after its grace period.
//! There, handlers end the program with the status that a shell reports for the signal.

use std::{
    io, process,
    sync::{Arc, atomic::AtomicBool},
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

/// Installs handlers that end the program, if it is the first process of its PID namespace.
///
/// # Errors
/// If handlers cannot be installed.
pub fn end_first_process() -> io::Result<()> {
    if process::id() != 1 {
        return Ok(());
    }
    let always = Arc::new(AtomicBool::new(true));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // The handler calls `_exit`, so that a thread that hangs cannot delay the end.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&always))?;
    }
    Ok(())
}
