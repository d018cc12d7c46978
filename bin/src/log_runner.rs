//! The program by the name `go-runner`: runs a command and writes its output to a file, by the
//! flags of kube-log-runner, which kube-proxy's image has at that path.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Command, ExitCode},
    thread,
};

use clap::{Arg, value_parser};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    iterator::Signals,
};

use crate::Failure;

pub const NAME: &str = "go-runner";

/// Runs the command of these arguments, and returns its exit status.
pub fn run(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let text = |name| Arg::new(name).long(name).num_args(1).default_value("");
    let switch = |name| {
        let switch = Arg::new(name).long(name).num_args(0..=1).require_equals(true);
        switch.default_missing_value("true").value_parser(value_parser!(bool))
    };
    let command = Arg::new("command").num_args(1..).required(true).trailing_var_arg(true);
    let mut is_flag = true;
    // Go takes one dash for two.
    let arguments = arguments.iter().enumerate().map(|(place, word)| {
        is_flag &= place == 0 || word.as_encoded_bytes().starts_with(b"-");
        let text = word.to_str().and_then(|word| word.strip_prefix('-'));
        match text {
            Some(name) if is_flag && !name.is_empty() && !name.starts_with('-') => {
                OsString::from(format!("--{name}"))
            }
            _ => word.clone(),
        }
    });
    let flags = clap::Command::new(NAME)
        .args_override_self(true)
        .args([text("log-file"), switch("also-stdout").default_value("false")])
        .args([switch("redirect-stderr").default_value("true")])
        // Output is never held back, and the file is not rotated.
        .args([text("flush-interval"), text("log-file-size"), text("log-file-age")])
        .arg(command.value_parser(value_parser!(OsString)))
        .try_get_matches_from(arguments)?;
    let is_on = |name| flags.get_one(name) == Some(&true);
    let mut words = flags.get_many::<OsString>("command").into_iter().flatten();
    let name = words.next().ok_or("no command")?;
    let failed = |error| format!("cannot run {}: {error}", name.display());
    let mut command = Command::new(name);
    command.args(words);
    let path = flags.get_one("log-file").map_or("", String::as_str);
    if path.is_empty() {
        if is_on("redirect-stderr") {
            command.stderr(io::stdout().as_fd().try_clone_to_owned()?);
        }
        return Err(failed(command.exec()).into());
    }
    let file = File::options().append(true).create(true).open(path);
    let mut file = file.map_err(|error| format!("cannot open {path}: {error}"))?;
    let (mut output, end) = io::pipe()?;
    if is_on("redirect-stderr") {
        command.stderr(end.try_clone()?);
    }
    command.stdout(end);
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    let mut child = command.spawn().map_err(failed)?;
    // The command holds an end of the pipe.
    drop(command);
    let pid = Pid::from_child(&child);
    thread::spawn(move || {
        for signal in &mut signals {
            // A process that has ended needs none.
            let _ = Signal::from_named_raw(signal).map(|signal| kill_process(pid, signal));
        }
    });
    let mut chunk = [0; 1 << 14];
    loop {
        let length = output.read(&mut chunk)?;
        let Some(bytes @ [_, ..]) = chunk.get(..length) else { break };
        // Neither a full disk nor a reader that is gone ends the process.
        let _ = file.write_all(bytes);
        if is_on("also-stdout") {
            let _ = io::stdout().write_all(bytes).and_then(|()| io::stdout().flush());
        }
    }
    let status = child.wait()?;
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    Ok(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
