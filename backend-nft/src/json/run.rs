//! Running the program `nft`.

use std::{
    ffi::{OsStr, OsString},
    io::{Read, Write},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::transport::TransportError;

/// How often a running program is looked at, at first and at last.
const POLL: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// The program, and how long it may take.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub path: OsString,
    pub timeout: Duration,
}

/// What a program said.
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

    /// Runs it with `input` on its standard input, and kills it when it takes too long.
    pub fn run(&self, arguments: &[&str], input: &[u8]) -> Result<Output, TransportError> {
        let failed = |source| TransportError::Run { program: self.name(), source };
        let mut child = Command::new(&self.path)
            .args(arguments.iter().map(OsStr::new))
            // The words of errors are to be the same everywhere.
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // All at once, as the program may write before it has read everything.
        let (status, stdout, stderr) = thread::scope(|scope| {
            // It may also end before it has read everything: then its message matters, not ours.
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
                message: format!("it did not end within {:?}. {stderr}", self.timeout)
                    .trim_end()
                    .to_owned(),
            }),
        }
    }

    /// The same, where failing is an error.
    pub fn succeed(&self, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>, TransportError> {
        let output = self.run(arguments, input)?;
        match output.success {
            true => Ok(output.stdout),
            false => Err(TransportError::Program { program: self.name(), message: output.stderr }),
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

fn read_all(pipe: Option<impl Read>) -> Vec<u8> {
    let mut read = Vec::new();
    if let Some(mut pipe) = pipe {
        // What was read until an error is all there is to know.
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
        assert_eq!(error.to_string(), "sh failed: it did not end within 50ms. stuck");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let program = Program { path: "/no/such/nft".into(), timeout: Duration::from_secs(1) };
        let error = program.succeed(&[], b"").unwrap_err().to_string();
        assert!(error.starts_with("cannot run /no/such/nft: No such file"), "{error}");
    }
}
