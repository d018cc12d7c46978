//! Programs that are run in the namespace of a thread, by lines of words that are separated by
//! single spaces.

use std::{
    io::Write,
    process::{Command, Stdio},
    thread,
};

/// Output of a program, which has to succeed.
///
/// # Panics
///
/// If the program fails or cannot be run; the message has what it wrote about the failure.
#[track_caller]
pub fn run(line: &str) -> String {
    run_with(line, "")
}

/// Output of a program that reads `input`, and has to succeed.
///
/// # Panics
///
/// As [`run`].
#[track_caller]
pub fn run_with(line: &str, input: &str) -> String {
    attempt(line, input).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Output of a program; its standard error, if the program fails.
///
/// # Panics
///
/// If the program cannot be run.
#[track_caller]
pub fn try_run(line: &str) -> Result<String, String> {
    attempt(line, "")
}

#[track_caller]
fn attempt(line: &str, input: &str) -> Result<String, String> {
    let mut words = line.split(' ');
    run_command(Command::new(words.next().unwrap_or_default()).args(words), input)
}

/// Output of a command that reads `input`; its standard error, if the program fails.
///
/// # Panics
///
/// If the program cannot be run.
#[track_caller]
pub fn run_command(command: &mut Command, input: &str) -> Result<String, String> {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut stdin = child.stdin.take().expect("a pipe");
    let output = thread::scope(|scope| {
        // A program may end before it has read everything.
        scope.spawn(move || stdin.write_all(input.as_bytes()));
        child.wait_with_output().expect("it ends")
    });
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).expect("text")),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
