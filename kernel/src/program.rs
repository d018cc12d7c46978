//! Programs that run as child processes, never longer than a limit.

use std::{
    fs::File,
    io::{self, ErrorKind, Read, Write},
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, ioctl_fionbio},
    process::{Pid, Signal, kill_process_group},
};

/// The pauses between looks at a child whose pipes are quiet double from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// The time for which output is read after the child has ended, if another process holds the pipe.
const GRACE: Duration = Duration::from_millis(100);
/// The time that a killed child may take to end before a thread is left behind to wait for it: a
/// system call that hangs cannot be killed.
const KILL_PATIENCE: Duration = Duration::from_secs(1);
/// The most that is kept of the outputs, in bytes: a table may be large, but no message is.
const MOST: [usize; 2] = [usize::MAX, 1 << 20];

/// Why a program has no result.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program could not be started or served.
    #[error("cannot run the program")]
    Io(#[from] io::Error),
    /// The program was killed at the limit.
    #[error("the program did not end in time, and was killed")]
    TimedOut {
        /// The output on standard error before.
        stderr: Vec<u8>,
    },
}

/// Runs a program with `input` on its standard input.
///
/// The program gets its own process group, which is killed at the limit. A process that the program
/// leaves behind with its output is not waited for.
///
/// # Errors
///
/// If the program cannot be run, or does not end within the limit. Its exit status is no error.
pub fn run(command: &mut Command, input: &[u8], limit: Duration) -> Result<Output, ProgramError> {
    let deadline = Instant::now() + limit;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let mut pipes = Pipes::new(&mut child, input);
    let ended = pipes.serve(&mut child, deadline);
    let [stdout, stderr] = pipes.read;
    match ended {
        Ok(Some(status)) => return Ok(Output { status, stdout, stderr }),
        Ok(None) => kill(child),
        Err(error) => {
            kill(child);
            return Err(error.into());
        }
    }
    Err(ProgramError::TimedOut { stderr })
}

/// The pipes of a child. All are served at once, as the child may write before it has read
/// everything.
struct Pipes<'a> {
    stdin: Option<File>,
    /// The input that is not written yet.
    input: &'a [u8],
    /// Standard output and standard error.
    outputs: [Option<File>; 2],
    /// The output that was read, of both.
    read: [Vec<u8>; 2],
}

impl<'a> Pipes<'a> {
    fn new(child: &mut Child, input: &'a [u8]) -> Self {
        Self {
            stdin: child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe))),
            input,
            outputs: [
                child.stdout.take().map(|pipe| File::from(OwnedFd::from(pipe))),
                child.stderr.take().map(|pipe| File::from(OwnedFd::from(pipe))),
            ],
            read: [Vec::new(), Vec::new()],
        }
    }

    fn all(&self) -> impl Iterator<Item = (&File, PollFlags)> {
        let outputs = self.outputs.iter().flatten().map(|pipe| (pipe, PollFlags::IN));
        self.stdin.iter().map(|pipe| (pipe, PollFlags::OUT)).chain(outputs)
    }

    /// Writes the input and reads the output until the child has ended. Returns `None` at the
    /// deadline.
    fn serve(
        &mut self,
        child: &mut Child,
        mut deadline: Instant,
    ) -> io::Result<Option<ExitStatus>> {
        for (pipe, _) in self.all() {
            ioctl_fionbio(pipe, true)?;
        }
        let mut status = None;
        let mut pause = FIRST_PAUSE;
        loop {
            let is_moving = self.write()? | self.read()?;
            if status.is_none() {
                status = child.try_wait().map_err(named)?;
                // All that the child wrote is in the pipes.
                if status.is_some() {
                    deadline = deadline.min(Instant::now() + GRACE);
                    continue;
                }
            }
            let is_read = self.outputs.iter().all(Option::is_none);
            if Instant::now() >= deadline || (status.is_some() && is_read) {
                return Ok(status);
            }
            if !is_moving {
                self.wait(pause)?;
            }
            pause = if is_moving { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        }
    }

    /// Waits until a pipe can be served, for as long as the pause.
    fn wait(&self, pause: Duration) -> io::Result<()> {
        let mut pipes: Vec<_> = self.all().map(|(pipe, flags)| PollFd::new(pipe, flags)).collect();
        let pause = Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() };
        match poll(&mut pipes, Some(&pause)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a part of the input, and closes the pipe at its end. Returns whether anything was
    /// done.
    fn write(&mut self) -> io::Result<bool> {
        let Some(stdin) = &mut self.stdin else { return Ok(false) };
        match stdin.write(self.input) {
            Ok(written) if written < self.input.len() => self.input = &self.input[written..],
            Err(error) if is_temporary(&error) => return Ok(false),
            // The child need not read everything.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error),
            _ => self.stdin = None,
        }
        Ok(true)
    }

    /// Reads a part of both outputs. Returns whether anything was done.
    fn read(&mut self) -> io::Result<bool> {
        let mut is_moving = false;
        for ((output, read), most) in self.outputs.iter_mut().zip(&mut self.read).zip(MOST) {
            let Some(pipe) = output else { continue };
            let mut part = [0; 1 << 16];
            match pipe.read(&mut part) {
                Ok(0) => *output = None,
                Ok(length) => {
                    let kept = length.min(most.saturating_sub(read.len()));
                    read.extend_from_slice(&part[..kept]);
                }
                Err(error) if is_temporary(&error) => continue,
                Err(error) => return Err(error),
            }
            is_moving = true;
        }
        Ok(is_moving)
    }
}

/// Names the cause of an error that the kernel calls "No child processes".
fn named(error: io::Error) -> io::Error {
    const LOST: &str = "its exit status is lost: SIGCHLD is ignored in this process, or another \
                        part of this process waits for all children";
    if Errno::from_io_error(&error) == Some(Errno::CHILD) { io::Error::other(LOST) } else { error }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Kills the child with its process group.
fn kill(mut child: Child) {
    // Until the child was waited for, its group keeps its number.
    if !matches!(child.try_wait(), Ok(None)) {
        return;
    }
    // Fails only if the whole group has ended.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    let end = Instant::now() + KILL_PATIENCE;
    while let Ok(None) = child.try_wait() {
        if Instant::now() >= end {
            // If no thread can be had, the child stays a zombie until this process ends.
            let _ = thread::Builder::new().spawn(move || child.wait());
            return;
        }
        thread::sleep(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{WaitOptions, waitpid};

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    const LONG: Duration = Duration::from_secs(300);
    /// More than any test takes, and less than the scripts sleep.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn input_and_both_outputs_do_not_block_each_other() {
        let input = vec![b'x'; 1 << 20];
        let script = "cat; head -c 1000000 /dev/zero >&2; exit 3";
        let output = run(&mut shell(script), &input, LONG).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!((output.stdout, output.stderr.len()), (input, 1_000_000));
    }

    #[test]
    fn a_program_need_not_read_its_input() {
        let input = vec![b'x'; 1 << 20];
        let output = run(&mut Command::new("true"), &input, LONG).unwrap();
        assert!(output.status.success());
    }

    /// The shell waits for its own child, which holds the output as well.
    #[test]
    fn a_program_that_hangs_is_killed_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        let script = format!("sleep 600 & echo $! >{}; echo stuck >&2; wait", path.display());
        let start = Instant::now();
        let failure = run(&mut shell(&script), b"", Duration::from_millis(500)).unwrap_err();
        assert!(start.elapsed() < PATIENCE);
        let ProgramError::TimedOut { stderr } = failure else { panic!("{failure:?}") };
        assert_eq!(stderr, b"stuck\n");
        let pid = std::fs::read_to_string(&path).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        let is_gone = || match std::fs::read_to_string(&stat) {
            // A zombie waits for its new parent.
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        while !is_gone() {
            assert!(start.elapsed() < PATIENCE, "the child of {} still runs", pid.trim());
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_status_that_another_part_of_the_process_has_taken_is_missed() {
        let mut command = shell("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let pid = Pid::from_child(&child);
        let mut pipes = Pipes::new(&mut child, b"");
        pipes.stdin = None;
        waitpid(Some(pid), WaitOptions::empty()).unwrap();
        let error = pipes.serve(&mut child, Instant::now() + LONG).unwrap_err();
        assert!(error.to_string().contains("SIGCHLD is ignored"), "{error}");
    }

    /// The process outlives the program's group, too.
    #[test]
    fn a_process_that_the_program_leaves_behind_is_not_waited_for() {
        let start = Instant::now();
        let script = "setsid sleep 90 & echo done; echo why >&2; exit 4";
        let output = run(&mut shell(script), b"", LONG).unwrap();
        assert_eq!(output.status.code(), Some(4));
        assert_eq!((&*output.stdout, &*output.stderr), (&b"done\n"[..], &b"why\n"[..]));
        assert!(start.elapsed() < PATIENCE);
    }

    #[test]
    fn a_program_that_closes_its_output_and_hangs_is_killed() {
        let start = Instant::now();
        let script = "exec >&- 2>&-; exec sleep 600";
        let failure = run(&mut shell(script), b"", Duration::from_millis(200)).unwrap_err();
        assert!(matches!(failure, ProgramError::TimedOut { .. }), "{failure:?}");
        assert!(start.elapsed() < PATIENCE);
    }
}
