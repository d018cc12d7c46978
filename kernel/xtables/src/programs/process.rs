//! Runs a child process, never longer than a limit.

use std::{
    io::{self, Read, Write},
    mem,
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};

/// The pauses between looks at a child that has closed its output double from the first to the
/// longest.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// The time that a killed child may take to end before a thread is left behind to wait for it: a
/// system call that hangs cannot be killed.
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
    /// The child could not be started.
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
/// The program gets its own process group. At the limit, the whole group is killed, also if
/// the program has ended and a process that it started holds its output.
pub(super) fn run(command: &mut Command, input: &[u8], limit: Duration) -> Result<Output, Failure> {
    let deadline = Instant::now() + limit;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let [stdout, stderr] = match serve_pipes(&mut child, input.to_vec()) {
        Ok(outputs) => outputs,
        Err(error) => {
            kill(child);
            return Err(error.into());
        }
    };
    let (stdout, mut errors) = (receive(&stdout, deadline), receive(&stderr, deadline));
    // The status is left to `kill` unless all was read: until then, the process group keeps its
    // number.
    let is_read = stdout.is_some() && errors.is_some();
    let status = if is_read { wait(&mut child, deadline) } else { Ok(None) };
    if let (Some(stdout), Some(stderr), Ok(Some(status))) = (stdout, &mut errors, &status) {
        return Ok(Output { status: *status, stdout, stderr: mem::take(stderr) });
    }
    kill(child);
    status?;
    let stderr = errors.or_else(|| receive(&stderr, Instant::now() + KILL_PATIENCE));
    Err(Failure::TimedOut { stderr: stderr.unwrap_or_default() })
}

/// Serves all pipes at once, as the child may write before it has read everything. Returns where
/// its output and its errors arrive.
fn serve_pipes(child: &mut Child, input: Vec<u8>) -> io::Result<[Receiver<Vec<u8>>; 2]> {
    if let Some(mut stdin) = child.stdin.take() {
        // A program that fails need not have read everything.
        let write = move || drop(stdin.write_all(&input));
        thread::Builder::new().spawn(write)?;
    }
    Ok([read_all(child.stdout.take())?, read_all(child.stderr.take())?])
}

/// Reads to the end in a thread, which is left behind if another process holds the pipe.
fn read_all(pipe: Option<impl Read + Send + 'static>) -> io::Result<Receiver<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().spawn(move || {
        let mut read = Vec::new();
        if pipe.is_none_or(|mut pipe| pipe.read_to_end(&mut read).is_ok()) {
            // No one waits for it after the deadline.
            let _ = sender.send(read);
        }
    })?;
    Ok(receiver)
}

fn receive(output: &Receiver<Vec<u8>>, deadline: Instant) -> Option<Vec<u8>> {
    output.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
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

    /// The shell waits for its own child, which holds the output as well.
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

    /// The process that holds the output is not in the group.
    #[test]
    fn output_that_another_process_holds_is_waited_for_until_the_limit() {
        let start = Instant::now();
        let script = "setsid sleep 90 & echo done >&2";
        let failure = run(&mut shell(script), b"", Duration::from_millis(200)).unwrap_err();
        assert!(matches!(failure, Failure::TimedOut { .. }), "{failure:?}");
        assert!(start.elapsed() < PATIENCE);
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
