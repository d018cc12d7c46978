//! Runs the programs, and waits for the lock that they share.
//!
//! The legacy programs take turns by a lock on a file. With `-w` they wait for it themselves, but
//! say nothing of how long; so we look at the lock before we start them, and wait there, with
//! growing pauses. Those of the nft flavour have no lock: they see that somebody else was quicker,
//! and start over.

use std::{
    env,
    fs::{File, TryLockError},
    io::{self, Write},
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{Flavour, Programs, ToolError, dump::Dump};

/// For how many seconds a program waits for the lock.
const WAIT_SECONDS: &str = "5";
/// How often a program is run that did not get the lock.
const ATTEMPTS: u32 = 3;
/// The first pause between looks at the lock; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// How long we look at the lock before a program is run in any case.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The exit status of programs that did not get the lock, or some other resource.
const RESOURCE_PROBLEM: i32 = 4;

/// What a restore took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Restored {
    /// The program's run.
    pub(crate) commit: Duration,
    /// Waiting for the lock before.
    pub(crate) waited: Duration,
}

/// What `--version` prints.
pub(crate) fn version(program: &Path) -> Result<String, ToolError> {
    let mut command = Command::new(program);
    command.arg("--version");
    let output = run(command, "")?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failure(program, &output, "")),
    }
}

/// Reads all tables.
pub(crate) fn save(programs: &Programs) -> Result<Dump, ToolError> {
    let output = run(Command::new(&programs.save), "")?;
    match output.status.success() {
        true => Dump::parse(programs, &String::from_utf8_lossy(&output.stdout)),
        false => Err(failure(&programs.save, &output, "")),
    }
}

/// Makes the changes in `input`: all of a table's, or none of them.
pub(crate) fn restore(programs: &Programs, input: &str) -> Result<Restored, ToolError> {
    let mut restored = Restored::default();
    let mut attempt = 1;
    tracing::trace!(
        target: "backend_iptables::v9",
        ipFamily = programs.family.as_str(),
        rules = input,
        "Restoring"
    );
    loop {
        if programs.flavour == Flavour::Legacy {
            restored.waited += wait_for_lock();
        }
        let mut command = Command::new(&programs.restore);
        command.args(["-w", WAIT_SECONDS, "--noflush", "--counters"]);
        let start = Instant::now();
        let output = run(command, input)?;
        if output.status.success() {
            restored.commit = start.elapsed();
            return Ok(restored);
        }
        match failure(&programs.restore, &output, input) {
            ToolError::Locked { .. } if attempt < ATTEMPTS => {
                restored.waited += start.elapsed();
                attempt += 1;
            }
            error => return Err(error),
        }
    }
}

/// Whether the main program succeeds with these arguments; `None` if that cannot be told now.
pub(crate) fn check(programs: &Programs, arguments: &[&str]) -> Result<Option<bool>, ToolError> {
    let mut command = Command::new(&programs.main);
    command.args(["-w", WAIT_SECONDS]).args(arguments);
    let output = run(command, "")?;
    Ok(match output.status.code() {
        Some(0) => Some(true),
        Some(1) => Some(false),
        Some(RESOURCE_PROBLEM) => None,
        _ => return Err(failure(&programs.main, &output, "")),
    })
}

fn run(mut command: Command, input: &str) -> Result<Output, ToolError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |source| ToolError::Run { program: program.clone(), source };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Messages are read, so they must be in the one language that we know.
    command.env("LC_ALL", "C");
    // Looked at first, since the arguments have to be put together.
    if tracing::enabled!(target: "backend_iptables::v5", tracing::Level::TRACE) {
        let arguments: Vec<_> = command.get_args().map(|part| part.to_string_lossy()).collect();
        let arguments = arguments.join(" ");
        tracing::trace!(target: "backend_iptables::v5", command = program, arguments, "Running");
    }
    let mut child = command.spawn().map_err(failed)?;
    let stdin = child.stdin.take();
    thread::scope(|scope| {
        // It may print a lot before it has read everything.
        let writer = scope.spawn(move || match stdin {
            Some(mut stdin) => stdin.write_all(input.as_bytes()),
            None => Ok(()),
        });
        let output = child.wait_with_output();
        match writer.join() {
            // A program that fails need not have read everything.
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => output,
        }
    })
    .map_err(failed)
}

/// Why a program failed.
fn failure(program: &Path, output: &Output, input: &str) -> ToolError {
    let program = program.display().to_string();
    let message = sentence(&String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(RESOURCE_PROBLEM) && message.contains("lock") {
        return ToolError::Locked { program, message };
    }
    match refused_line(&message) {
        Some(line) if !input.is_empty() => {
            let text = input.lines().nth(line - 1).unwrap_or_default().to_owned();
            ToolError::Refused { program, line, text, message }
        }
        _ => ToolError::Failed { program, status: output.status.to_string(), message },
    }
}

/// What was printed, in one line, without advice.
fn sentence(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let kept: Vec<&str> = lines
        .filter(|line| !line.is_empty() && !line.starts_with("Try `") && !line.starts_with('#'))
        .collect();
    kept.join("; ")
}

/// Finds `line 5 failed` and `Error occurred at line: 5`.
fn refused_line(message: &str) -> Option<usize> {
    let rest = message.split("line").skip(1);
    rest.filter_map(|rest| {
        let digits = rest.trim_start_matches([':', ' ']);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().ok()
    })
    .find(|line| *line > 0)
}

/// Waits until nobody has the lock; returns for how long.
fn wait_for_lock() -> Duration {
    let path = env::var_os("XTABLES_LOCKFILE").unwrap_or_else(|| "/run/xtables.lock".into());
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    // Without a file, nobody has locked it; and the program itself says what is wrong with it.
    while let Ok(file) = File::open(&path) {
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) if start.elapsed() < LONGEST_WAIT => {
                thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            _ => break,
        }
    }
    // A lock that was free has cost nothing worth counting.
    if pause == FIRST_PAUSE { Duration::ZERO } else { start.elapsed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refused_line_is_found() {
        let legacy = "iptables-restore v1.8.9 (legacy): Set foo doesn't exist.\n\n\
                      Error occurred at line: 13\nTry `iptables-restore -h' for more information.\n";
        assert_eq!(refused_line(&sentence(legacy)), Some(13));
        assert!(!sentence(legacy).contains("Try"));
        assert_eq!(refused_line("iptables-restore: line 9 failed"), Some(9));
        assert_eq!(refused_line("iptables-nft-restore: line 7 failed: Bad rule"), Some(7));
        assert_eq!(refused_line("nothing in line"), None);
    }

    #[test]
    fn a_program_that_does_not_read_is_no_reason_to_hang() {
        let input = "x".repeat(1 << 20);
        let output = run(Command::new("true"), &input).unwrap();
        assert!(output.status.success());
        let error = run(Command::new("/nonexistent/iptables"), "").unwrap_err();
        assert_eq!(error.to_string(), "cannot run /nonexistent/iptables");
    }
}
