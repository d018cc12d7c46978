//! Running the program `nft`.

use std::{
    ffi::{OsStr, OsString},
    io::{Read, Write},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::transport::TransportError;

/// The wait between two looks at a running program: at first, and at most.
const POLL: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// The most characters that are kept of a line of an error message.
const MESSAGE_LINE: usize = 500;

/// A program, and how long it may run.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub path: OsString,
    pub timeout: Duration,
}

/// The outcome of a program.
pub(super) struct Output {
    pub success: bool,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Program {
    /// The program's name, for messages.
    pub fn name(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// Runs the program with `input` on its standard input, and kills it after the timeout.
    pub fn run(&self, arguments: &[&str], input: &[u8]) -> Result<Output, TransportError> {
        let failed = |source| TransportError::Run { program: self.name(), source };
        let mut child = Command::new(&self.path)
            .args(arguments.iter().map(OsStr::new))
            // Errors have the same words in every locale.
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // All pipes are served at once, as the program may write before it has read everything.
        let (status, stdout, stderr) = thread::scope(|scope| {
            // The program may end before it has read everything: then its message matters, and not
            // the failed write.
            scope.spawn(move || stdin.map(|mut pipe| pipe.write_all(input)));
            let stdout = scope.spawn(move || read_all(stdout));
            let stderr = scope.spawn(move || read_all(stderr));
            let status = self.wait(&mut child);
            (status, stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default())
        });
        let stderr = String::from_utf8_lossy(&stderr).trim_end().to_owned();
        match status.map_err(failed)? {
            Some(status) => Ok(Output { success: status.success(), stdout, stderr }),
            None => Err(TransportError::Program {
                program: self.name(),
                message: format!("still running after {:?}. {stderr}", self.timeout)
                    .trim_end()
                    .to_owned(),
            }),
        }
    }

    /// Runs the program like [`Self::run`]; an exit status other than 0 is an error.
    pub fn succeed(&self, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>, TransportError> {
        let output = self.run(arguments, input)?;
        match output.success {
            true => Ok(output.stdout),
            false => Err(TransportError::Program {
                program: self.name(),
                message: shortened(&output.stderr),
            }),
        }
    }

    fn wait(&self, child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + self.timeout;
        let [mut pause, longest] = POLL;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(longest);
        }
    }
}

/// The message with long lines cut. nft quotes the line of text that it rejects, which may have
/// thousands of elements.
fn shortened(message: &str) -> String {
    let cut = |line: &str| line.chars().take(MESSAGE_LINE).collect::<String>();
    message.lines().map(cut).collect::<Vec<_>>().join("\n")
}

fn read_all(pipe: Option<impl Read>) -> Vec<u8> {
    let mut read = Vec::new();
    if let Some(mut pipe) = pipe {
        // After an error, the output is what was read before.
        let _ = pipe.read_to_end(&mut read);
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(timeout: Duration) -> Program {
        Program { path: "sh".into(), timeout }
    }

    #[test]
    fn input_and_both_outputs_do_not_block_each_other() {
        let input = vec![b'x'; 1 << 20];
        let script = "cat; cat /dev/zero | head -c 1000000 >&2; exit 3";
        let output = shell(Duration::from_secs(60)).run(&["-c", script], &input).unwrap();
        assert!(!output.success);
        assert_eq!(output.stdout, input);
        assert_eq!(output.stderr.len(), 1_000_000);
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let begun = Instant::now();
        let error = shell(Duration::from_millis(50))
            .run(&["-c", "echo stuck >&2; exec sleep 60"], b"")
            .err()
            .unwrap();
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert_eq!(error.to_string(), "sh failed: still running after 50ms. stuck");
    }

    #[test]
    fn a_message_that_quotes_a_long_line_is_cut() {
        let script = "echo why >&2; head -c 1000000 /dev/zero | tr '\\0' e >&2; exit 1";
        let error = shell(Duration::from_secs(60)).succeed(&["-c", script], b"").unwrap_err();
        assert_eq!(error.to_string(), format!("sh failed: why\n{}", "e".repeat(MESSAGE_LINE)));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let program = Program { path: "/no/such/nft".into(), timeout: Duration::from_secs(1) };
        let error = program.succeed(&[], b"").unwrap_err();
        assert_eq!(error.to_string(), "cannot run /no/such/nft");
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.starts_with("No such file"), "{cause}");
    }
}
