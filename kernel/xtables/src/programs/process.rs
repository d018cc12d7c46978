//! Runs a child process, never longer than a limit.

use std::{
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::process::CommandExt,
    },
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, kill_process_group},
};

/// How often a child is looked at that neither writes, nor reads, nor closes its output.
const TICK: Duration = Duration::from_millis(100);
/// The pauses between looks at a child that has closed its output double from the first to the
/// longest.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// How long a killed child may take to end before a thread is left behind to wait for it: a system
/// call that hangs cannot be killed.
const KILL_PATIENCE: Duration = Duration::from_secs(1);

/// The result of a child that ended by itself.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

/// Why there is no result.
#[derive(Debug)]
pub(super) enum Failure {
    /// The child could not be started, written to, or read from.
    Io(io::Error),
    /// The child was killed at the limit. It may have written an explanation.
    TimedOut { stderr: Vec<u8> },
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Runs a program with `input` on its standard input.
///
/// The program gets a process group of its own. At the limit, the whole group is killed. Output that
/// is still open when the program has ended, because a process that it started holds it, is read no
/// further.
pub(super) fn run(command: &mut Command, input: &[u8], limit: Duration) -> Result<Output, Failure> {
    let deadline = Instant::now() + limit;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let mut pipes = Pipes::take(&mut child, input);
    match pipes.transfer(&mut child, deadline).and_then(|()| wait(&mut child, deadline)) {
        Ok(Some(status)) => Ok(Output { status, stdout: pipes.output, stderr: pipes.errors }),
        Ok(None) => {
            kill(child);
            Err(Failure::TimedOut { stderr: pipes.errors })
        }
        Err(error) => {
            kill(child);
            Err(error.into())
        }
    }
}

/// The child's ends of input and output, and what was read so far.
struct Pipes<'a> {
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    input: &'a [u8],
    output: Vec<u8>,
    errors: Vec<u8>,
}

impl<'a> Pipes<'a> {
    fn take(child: &mut Child, input: &'a [u8]) -> Self {
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        Self { stdin, stdout, stderr, input, output: Vec::new(), errors: Vec::new() }
    }

    /// Writes the input and reads the output, until the child has closed its output or ended, or
    /// until the deadline.
    fn transfer(&mut self, child: &mut Child, deadline: Instant) -> io::Result<()> {
        for pipe in self.open() {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        while self.stdout.is_some() || self.stderr.is_some() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let is_idle = !self.wait_until_ready(left.min(TICK))?;
            let has_ended = is_idle && child.try_wait()?.is_some();
            self.write()?;
            read(&mut self.stdout, &mut self.output)?;
            read(&mut self.stderr, &mut self.errors)?;
            if has_ended {
                return Ok(());
            }
        }
        Ok(())
    }

    fn open(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let stdin = self.stdin.as_ref().map(AsFd::as_fd);
        let stdout = self.stdout.as_ref().map(AsFd::as_fd);
        let stderr = self.stderr.as_ref().map(AsFd::as_fd);
        [stdin, stdout, stderr].into_iter().flatten()
    }

    /// Returns whether any pipe became ready.
    fn wait_until_ready(&self, longest: Duration) -> io::Result<bool> {
        let stdin = self.stdin.as_ref().map(AsFd::as_fd);
        let stdout = self.stdout.as_ref().map(AsFd::as_fd);
        let stderr = self.stderr.as_ref().map(AsFd::as_fd);
        let reading = [stdout, stderr].into_iter().flatten().map(|fd| (fd, PollFlags::IN));
        let writing = stdin.into_iter().map(|fd| (fd, PollFlags::OUT));
        let mut polled: Vec<PollFd<'_>> =
            writing.chain(reading).map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
        let longest = Timespec {
            tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: longest.subsec_nanos().into(),
        };
        match poll(&mut polled, Some(&longest)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes as much as the child takes now, and closes the pipe after the last byte.
    fn write(&mut self) -> io::Result<()> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        while !self.input.is_empty() {
            match stdin.write(self.input) {
                Ok(written) => self.input = &self.input[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // A program that fails need not have read everything.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
                Err(error) => return Err(error),
            }
        }
        self.stdin = None;
        Ok(())
    }
}

/// Reads what is there now, and drops the pipe at its end.
fn read(pipe: &mut Option<impl Read>, to: &mut Vec<u8>) -> io::Result<()> {
    let Some(reader) = pipe else { return Ok(()) };
    match reader.read_to_end(to) {
        Ok(_) => {
            *pipe = None;
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

/// Waits for the child to end; returns `None` at the deadline.
fn wait(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Kills the child with its process group.
fn kill(mut child: Child) {
    // Fails only if the whole group has ended.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    if let Ok(None) = wait(&mut child, Instant::now() + KILL_PATIENCE) {
        // If no thread can be had, the child stays a zombie until this process ends.
        let _ = thread::Builder::new().spawn(move || child.wait());
    }
}

#[cfg(test)]
mod tests {
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

    /// The shell waits for a child of its own, which holds the output as well.
    #[test]
    fn a_program_that_hangs_is_killed_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        let script = format!("sleep 600 & echo $! >{}; echo stuck >&2; wait", path.display());
        let start = Instant::now();
        let failure = run(&mut shell(&script), b"", Duration::from_millis(500)).unwrap_err();
        assert!(start.elapsed() < PATIENCE);
        let Failure::TimedOut { stderr } = failure else { panic!("{failure:?}") };
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

    /// Neither the group nor the end of the output tells when this one is done.
    #[test]
    fn output_that_another_process_holds_is_not_waited_for() {
        let start = Instant::now();
        let output = run(&mut shell("setsid sleep 90 & echo done"), b"", LONG).unwrap();
        assert!(start.elapsed() < PATIENCE);
        assert_eq!(output.stdout, b"done\n");
    }

    #[test]
    fn a_program_that_closes_its_output_and_hangs_is_killed() {
        let start = Instant::now();
        let script = "exec >&- 2>&-; exec sleep 600";
        let failure = run(&mut shell(script), b"", Duration::from_millis(200)).unwrap_err();
        assert!(matches!(failure, Failure::TimedOut { .. }), "{failure:?}");
        assert!(start.elapsed() < PATIENCE);
    }
}
