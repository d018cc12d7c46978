//! Signals: none is handled, so that the program just stops and what it programmed stays.
//!
//! But to the first process of a container the kernel delivers no signal that it does not handle:
//! the pod would be killed only when its grace period is over. There, the signals that end a
//! program by default end it with the status that a shell gives to that.

use std::{
    io, process,
    sync::{Arc, atomic::AtomicBool},
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

/// If this is the first process of its PID namespace, makes it end by signals nevertheless.
///
/// # Errors
/// If handlers cannot be installed.
pub fn end_first_process() -> io::Result<()> {
    if process::id() != 1 {
        return Ok(());
    }
    let always = Arc::new(AtomicBool::new(true));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // By `_exit`, from within the handler: nothing that hangs can keep it from that.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&always))?;
    }
    Ok(())
}
