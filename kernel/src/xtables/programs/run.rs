//! Saving, restoring and checking.

use std::{
    borrow::Cow,
    iter,
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use crate::{
    program::{self, ProgramError},
    xtables::{
        Dump, Fingerprint, Jump, Table,
        lock::{self, VARIABLE},
        rule::Words,
    },
};

use super::{Flavour, ProgramOptions, Programs, ToolError};

/// For how many seconds a program waits for the lock.
const WAIT_SECONDS: &str = "5";
/// The number of times that a program is run that did not get the lock, or that a change by another
/// program disturbed.
const ATTEMPTS: u32 = 3;
/// The exit status of programs that cannot understand a rule.
const PARAMETER_PROBLEM: i32 = 2;
/// The exit status of programs that did not get the lock, or some other resource.
const RESOURCE_PROBLEM: i32 = 4;

/// The time that a restore took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restored {
    /// The run of the program that succeeded.
    pub commit: Duration,
    /// The wait for the xtables lock before that.
    pub waited: Duration,
}

/// Returns the output of `--version`.
pub(super) fn version(program: &Path, options: &ProgramOptions) -> Result<String, ToolError> {
    let mut command = Command::new(program);
    command.arg("--version");
    let output = run(&mut command, "", options.limits.single)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failure(program, &output, "")),
    }
}

impl Programs {
    /// Reads all tables. Blocks, as all methods of this type do, for as long as the program runs.
    ///
    /// The program reads in several steps, and fails if another program removes in between what the
    /// next step asks for: an ipset that a rule matched, say. So a run that fails while the tables
    /// change is repeated, twice at most.
    ///
    /// # Errors
    ///
    /// If the program fails or takes too long, or cannot show one of the tables.
    pub fn save(&self) -> Result<Dump, ToolError> {
        let mut attempt = 1;
        let output = loop {
            let before = Fingerprint::read(self);
            let output = self.run(&mut self.command(&self.save), "", self.limits.tables)?;
            if output.status.success() {
                break output;
            }
            let error = failure(&self.save, &output, "");
            if attempt == ATTEMPTS || before == Fingerprint::read(self) {
                return Err(error);
            }
            tracing::debug!(
                ipFamily = self.family.as_str(),
                err = %error,
                "Tables changed during the read; reading again"
            );
            attempt += 1;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        Dump::parse(&text).map_err(|unreadable| ToolError::Incompatible {
            program: self.save.display().to_string(),
            table: unreadable.0.name(),
        })
    }

    /// Makes the changes in `input` ([`Changes::to_text`](crate::xtables::Changes::to_text)). The changes of
    /// each table are made as a whole or not at all, one table after the other. While another
    /// program holds the xtables lock, tries three times, for five to ten seconds each.
    ///
    /// # Errors
    ///
    /// If the program fails or takes too long.
    pub fn restore(&self, input: &str) -> Result<Restored, ToolError> {
        let mut restored = Restored::default();
        let mut attempt = 1;
        tracing::trace!(
            target: "switchyard_kernel::v9",
            ipFamily = self.family.as_str(),
            rules = input,
            "Restoring"
        );
        loop {
            if self.flavour == Flavour::Legacy {
                restored.waited += lock::wait_until_free(&self.lock_file());
            }
            let mut command = self.command(&self.restore);
            command.args(["-w", WAIT_SECONDS, "--noflush", "--counters"]);
            let start = Instant::now();
            let output = self.run(&mut command, input, self.limits.tables)?;
            if output.status.success() {
                restored.commit = start.elapsed();
                return Ok(restored);
            }
            match failure(&self.restore, &output, input) {
                ToolError::Locked { .. } if attempt < ATTEMPTS => {
                    restored.waited += start.elapsed();
                    attempt += 1;
                }
                error => return Err(error),
            }
        }
    }

    /// Asks for each of these jumps, and returns a dump of those that exist, for tables that
    /// [`Programs::save`] cannot show. Takes a run of the program for each.
    ///
    /// # Errors
    ///
    /// If the program cannot be run, or another program holds the lock.
    pub fn held_jumps(&self, jumps: &[Jump]) -> Result<Dump, ToolError> {
        let mut dump = Dump::default();
        for jump in jumps {
            if self.check_rule(jump.table, jump.from, &jump.rule)? {
                dump.add_jump(jump);
            }
        }
        Ok(dump)
    }

    /// Adds a chain with a rule, and the jumps to it, as far as they are missing, to a table that
    /// [`Programs::save`] cannot show. Takes two runs of the program for each.
    ///
    /// # Errors
    ///
    /// If the program cannot be run or refuses a rule, or another program holds the lock.
    pub fn add_missing(
        &self,
        (table, chain): (Table, &str),
        rule: &str,
        jumps: &[Jump],
    ) -> Result<(), ToolError> {
        // Fails if there is one.
        self.run_main(&["-t", table.name(), "-N", chain])?;
        let jumps = jumps.iter().map(|jump| ("-I", jump.from, jump.rule.as_str()));
        for (command, chain, rule) in iter::once(("-A", chain, rule)).chain(jumps) {
            if self.check_rule(table, chain, rule)? {
                continue;
            }
            let output = self.run_main(&command_about(table, command, chain, rule))?;
            if !output.status.success() {
                return Err(failure(&self.main, &output, ""));
            }
        }
        Ok(())
    }

    /// Runs the main program to ask for a rule. A rule that leads to a chain that does not exist is
    /// not there: the program calls the rule wrong then.
    pub(crate) fn check_rule(
        &self,
        table: Table,
        chain: &str,
        rule: &str,
    ) -> Result<bool, ToolError> {
        let output = self.run_main(&command_about(table, "-C", chain, rule))?;
        match output.status.code() {
            Some(PARAMETER_PROBLEM) => Ok(false),
            _ => self.answer(&output),
        }
    }

    /// Runs the main program; returns whether it succeeds.
    pub(crate) fn check(&self, arguments: &[&str]) -> Result<bool, ToolError> {
        self.answer(&self.run_main(arguments)?)
    }

    fn answer(&self, output: &Output) -> Result<bool, ToolError> {
        Ok(match output.status.code() {
            Some(0) => true,
            Some(1) => false,
            _ => return Err(failure(&self.main, output, "")),
        })
    }

    fn run_main(&self, arguments: &[&str]) -> Result<Output, ToolError> {
        let mut command = self.command(&self.main);
        command.args(["-w", WAIT_SECONDS]).args(arguments);
        self.run(&mut command, "", self.limits.single)
    }

    fn run(
        &self,
        command: &mut Command,
        input: &str,
        limit: Duration,
    ) -> Result<Output, ToolError> {
        #[cfg(feature = "testing")]
        if let Some(machine) = self.machine() {
            let (name, arguments) = (name(command), command.get_args());
            let arguments: Vec<_> = arguments.filter_map(|argument| argument.to_str()).collect();
            let program = name.strip_prefix("iptables").unwrap_or(&name);
            return machine.run(self.family, program, &arguments, input);
        }
        run(command, input, limit)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let Some(path) = &self.lock_file {
            command.env(VARIABLE, path);
        }
        command
    }

    fn lock_file(&self) -> Cow<'_, Path> {
        match &self.lock_file {
            Some(path) => Cow::Borrowed(path),
            None => Cow::Owned(lock::default_file()),
        }
    }
}

fn run(command: &mut Command, input: &str, limit: Duration) -> Result<Output, ToolError> {
    // Messages are parsed, which works in one language.
    command.env("LC_ALL", "C");
    // Joining the arguments is worth it only if they are logged.
    if tracing::enabled!(target: "switchyard_kernel::v5", tracing::Level::TRACE) {
        let (program, arguments) = (name(command), arguments(command));
        tracing::trace!(target: "switchyard_kernel::v5", command = program, arguments, "Running");
    }
    program::run(command, input.as_bytes(), limit).map_err(|error| match error {
        ProgramError::Io(source) => ToolError::Run { program: name(command), source },
        ProgramError::TimedOut { stderr } => ToolError::TimedOut {
            program: name(command),
            arguments: arguments(command),
            limit,
            message: sentence(&String::from_utf8_lossy(&stderr)),
        },
    })
}

fn name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

fn arguments(command: &Command) -> String {
    let arguments: Vec<_> = command.get_args().map(|part| part.to_string_lossy()).collect();
    arguments.join(" ")
}

/// Returns the arguments of a command about a rule.
fn command_about<'a>(
    table: Table,
    command: &'a str,
    chain: &'a str,
    rule: &'a str,
) -> Vec<&'a str> {
    ["-t", table.name(), command, chain].into_iter().chain(Words(rule)).collect()
}

fn failure(program: &Path, output: &Output, input: &str) -> ToolError {
    let program = program.display().to_string();
    let message = sentence(&String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(RESOURCE_PROBLEM)
        && message.contains("holding the xtables lock")
    {
        return ToolError::Locked { program, message };
    }
    let numbers = refused_lines(&message);
    match numbers.first() {
        Some(line) if !input.is_empty() => {
            let text = input.lines().nth(line - 1).unwrap_or_default().to_owned();
            let others = input.lines().zip(1..).filter(|(_, number)| numbers[1..].contains(number));
            let others = others.map(|(text, _)| text.to_owned()).collect();
            ToolError::Refused { program, line: *line, text, others, message }
        }
        _ => ToolError::Failed { program, status: output.status.to_string(), message },
    }
}

/// Returns a program's messages in one line, without advice.
fn sentence(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let kept: Vec<&str> = lines
        .filter(|line| !line.is_empty() && !line.starts_with("Try `") && !line.starts_with('#'))
        .collect();
    kept.join("; ")
}

/// Returns the numbers in `line 5 failed`, `line 5: RULE_APPEND failed` or
/// `Error occurred at line: 5`, in their order.
fn refused_lines(message: &str) -> Vec<usize> {
    let rest = message.split("line").skip(1);
    let numbers = rest.filter_map(|rest| {
        let digits = rest.trim_start_matches([':', ' ']);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().ok()
    });
    numbers.filter(|line| *line > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refused_line_is_found() {
        let legacy = "iptables-restore v1.8.9 (legacy): Set foo doesn't exist.\n\n\
                      Error occurred at line: 13\nTry `iptables-restore -h' for more information.\n";
        assert_eq!(refused_lines(&sentence(legacy)), [13]);
        assert!(!sentence(legacy).contains("Try"));
        assert_eq!(refused_lines("iptables-restore: line 9 failed"), [9]);
        assert_eq!(refused_lines("iptables-nft-restore: line 7 failed: Bad rule"), [7]);
        let several = "iptables-nft-restore v1.8.9 (nf_tables):\n\
                       line 5: RULE_APPEND failed (No such file or directory): rule in chain A\n\
                       line 6: RULE_APPEND failed (No such file or directory): rule in chain B\n";
        assert_eq!(refused_lines(&sentence(several)), [5, 6]);
        assert!(refused_lines("nothing in line").is_empty());
    }

    #[test]
    fn all_refused_lines_are_returned() {
        let stderr =
            b"line 2: RULE_APPEND failed (x): rule in chain A\nline 4: RULE_APPEND failed (x)\n";
        let status = std::os::unix::process::ExitStatusExt::from_raw(1 << 8);
        let output = Output { status, stdout: Vec::new(), stderr: stderr.to_vec() };
        let error = failure(Path::new("iptables-nft-restore"), &output, "*nat\n-A A\n-A B\n-A C\n");
        assert!(error.refused_lines().eq(["-A A", "-A C"]), "{error:?}");
        assert!(error.to_string().contains("refuses line 2, `-A A`: "), "{error}");
        let error = failure(Path::new("iptables-save"), &output, "");
        assert_eq!(error.refused_lines().count(), 0);
    }
}
