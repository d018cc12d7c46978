//! Running the program `nft`.

use std::{
    ffi::OsString,
    process::{self, Command},
    time::Duration,
};

use crate::{
    nftables::transport::TransportError,
    program::{self, ProgramError},
};

/// The most characters that are kept of a line of an error message.
const MESSAGE_LINE: usize = 500;

/// A program, and how long it may run.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub path: OsString,
    pub timeout: Duration,
}

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
        let mut command = Command::new(&self.path);
        // Errors have the same words in every locale.
        command.args(arguments).env("LC_ALL", "C");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        match program::run(&mut command, input, self.timeout) {
            Ok(process::Output { status, stdout, stderr }) => {
                Ok(Output { success: status.success(), stdout, stderr: text(&stderr) })
            }
            Err(ProgramError::Io(source)) => {
                Err(TransportError::Run { program: self.name(), source })
            }
            Err(ProgramError::TimedOut { stderr }) => {
                let message = format!("still running after {:?}. {}", self.timeout, text(&stderr));
                let message = message.trim_end().to_owned();
                Err(TransportError::Program { program: self.name(), message })
            }
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
}

/// The message with long lines cut. nft quotes the line of text that it rejects, which may have
/// thousands of elements.
fn shortened(message: &str) -> String {
    let cut = |line: &str| line.chars().take(MESSAGE_LINE).collect::<String>();
    message.lines().map(cut).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(timeout: Duration) -> Program {
        Program { path: "sh".into(), timeout }
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let error = shell(Duration::from_millis(50))
            .run(&["-c", "echo stuck >&2; exec sleep 60"], b"")
            .err()
            .unwrap();
        assert_eq!(error.to_string(), "sh failed: still running after 50ms. stuck");
    }

    #[test]
    fn a_message_that_quotes_a_long_line_is_cut() {
        let script = "echo why >&2; head -c 1000000 /dev/zero | tr '\\0' e >&2; exit 1";
        let error = shell(Duration::from_secs(60)).succeed(&["-c", script], b"").unwrap_err();
        assert_eq!(error.to_string(), format!("sh failed: why\n{}", "e".repeat(MESSAGE_LINE)));
    }
}
