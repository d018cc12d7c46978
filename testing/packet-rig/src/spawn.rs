//! Children that may outlive the thread that requested them, but never the process.
//!
//! The kernel's "kill me when my parent dies" means the parent *thread*. Test threads come and go,
//! so long-lived children are started by one thread that stays until the process ends.

use std::{
    ffi::OsStr,
    io,
    os::unix::process::CommandExt,
    process::{Child, Command},
    sync::{Mutex, OnceLock, PoisonError, mpsc},
    thread,
};

type Request = (Command, mpsc::Sender<io::Result<Child>>);

/// A command for `program` in the namespace of the process, whose child the kernel kills when the
/// thread that started the child ends.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    command
}

/// Starts `command` from the thread that lives as long as the process.
pub fn spawn(command: Command) -> io::Result<Child> {
    static REQUESTS: OnceLock<Mutex<mpsc::Sender<Request>>> = OnceLock::new();
    let requests = REQUESTS.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Request>();
        thread::spawn(move || {
            for (mut command, answer) in receiver {
                // A requester that went away takes its child with it.
                if let Err(mpsc::SendError(Ok(mut child))) = answer.send(command.spawn()) {
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
        });
        Mutex::new(sender)
    });
    let gone = || io::Error::other("the thread that starts children is gone");
    let (sender, answer) = mpsc::channel();
    let requests = requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
    requests.send((command, sender)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}
