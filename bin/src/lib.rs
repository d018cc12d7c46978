//! The `switchyard` program as a library, so that tests can reach its parts.
//!
//! [`main`] parses the command line, loads the configuration, starts the log and performs one
//! action: a subcommand, `--write-config-to`, `--cleanup`, or to proxy until the program ends.

#![forbid(unsafe_code)]

use std::{
    error::Error,
    ffi::OsString,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use switchyard_core::{error::ErrorChain, proxier};

use crate::{
    config::{
        Loaded,
        cli::{self, Cli, EarlyExit, RenderFormat, Subcommand},
        flags::{Flags, Status, table},
        settings::Settings,
        version, write,
    },
    klog::LogConfig,
    render::RenderError,
};

pub use crate::config::text::check as check_configuration;

mod api_addresses;
mod backends;
mod comparison;
mod config;
mod doctor;
mod explain;
mod flowtable;
mod klog;
mod local_socket;
mod log_runner;
mod logging;
mod node;
mod node_events;
mod objects;
mod observability;
mod other_tables;
mod pace;
mod printable;
mod process;
mod reachable;
mod reload;
mod render;
mod run;
mod select;
mod source_task;
mod start;
mod sysctl;
mod top;
mod trace;
mod tracked;
mod verify;

/// The error of an action. Its exit status is 1, as with kube-proxy.
type Failure = Box<dyn Error + Send + Sync>;

/// Runs the program with these arguments, the first of which is the program's name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    if let Err(error) = process::keep_exit_statuses() {
        let _ = writeln!(io::stderr(), "cannot handle SIGCHLD: {error}");
    }
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let name = arguments.first().and_then(|path| Path::new(path).file_name());
    if name.is_some_and(|name| name == log_runner::NAME) {
        return log_runner::run(&arguments).unwrap_or_else(|error| {
            let _ = writeln!(io::stderr(), "{}: {error}", log_runner::NAME);
            ExitCode::FAILURE
        });
    }
    let command = arguments.get(1).and_then(|word| word.to_str()).map(str::to_owned);
    let cli = match cli::parse(arguments) {
        Ok(cli) => cli,
        Err(EarlyExit::Help(text)) => return print(&text),
        Err(usage) => {
            // A failure to write to standard error cannot be reported anywhere.
            let _ = write!(io::stderr(), "{usage}");
            // Not that of an answer.
            return match command.as_deref() {
                Some("explain" | "snapshot" | "top") => explain::NO_ANSWER.into(),
                Some("doctor" | "verify") => verify::FAILED.into(),
                _ => ExitCode::FAILURE,
            };
        }
    };
    for notice in cli.flags.notices() {
        let _ = writeln!(io::stderr(), "{notice}");
    }
    if let Some(version) = version::answer(&cli.flags, cli.called_as) {
        return print(&format!("{version}\n"));
    }
    // These report on standard error, without a log.
    match &cli.command {
        Some(Subcommand::Explain(asked)) => return explain::run(asked, &cli.flags),
        Some(Subcommand::Top(asked)) => return top::run(*asked, &cli.flags),
        Some(Subcommand::Trace(asked)) => return trace::run(asked, &cli.flags),
        Some(Subcommand::Snapshot) => return explain::take_snapshot(&cli.flags),
        Some(Subcommand::Doctor(format)) => return doctor::run(&cli.flags, *format),
        Some(Subcommand::Verify(asked)) => return verify::run(asked, &cli.flags),
        Some(Subcommand::Render(_)) | None => {}
    }
    match process::end_by_signals().map_err(Failure::from).and_then(|()| load_and_act(&cli)) {
        Ok(()) => {
            logging::flush();
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!(err = %ErrorChain(error.as_ref()), "command failed");
            logging::flush();
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn load_and_act(cli: &Cli) -> Result<(), Failure> {
    let loaded = load(&cli.flags)?;
    act(cli, &loaded).inspect_err(|error| {
        tracing::error!(err = %ErrorChain(error.as_ref()), "Error running ProxyServer");
    })
}

/// Loads the configuration, and starts the log with the settings in it.
fn load(flags: &Flags) -> Result<Loaded, Failure> {
    let completed = match config::complete(flags, &backends::MODES) {
        Ok(completed) => completed,
        Err(error) => {
            start_log(&config::log_flags(flags))?;
            return Err(error.into());
        }
    };
    start_log(&completed.log)?;
    log_flags(flags);
    let loaded = completed.validate()?;
    for warning in &loaded.warnings {
        tracing::warn!(warning = warning.as_str(), "Configuration warning");
    }
    Ok(loaded)
}

fn start_log(settings: &LogConfig) -> Result<(), Failure> {
    Ok(logging::start(settings)?)
}

/// Logs every flag, as kube-proxy does; a flag that is not given has its default.
fn log_flags(flags: &Flags) {
    for flag in table::FLAGS.iter().filter(|flag| !matches!(flag.status, Status::Gone(_))) {
        let value = flags.written(flag.name).unwrap_or(flag.default);
        // A whole line without fields, as kube-proxy writes it.
        tracing::info!(target: "switchyard::line::v1", "FLAG: --{}={value:?}", flag.name);
    }
}

/// Performs the action that the command line requests.
fn act(cli: &Cli, loaded: &Loaded) -> Result<(), Failure> {
    let flags = &cli.flags;
    if let Some(path) = flags.text("write-config-to") {
        write::write(&loaded.config, Path::new(path))?;
        tracing::info!(file = path, "Wrote configuration");
        return Ok(());
    }
    if let Some(Subcommand::Render(format)) = cli.command {
        return render_manifests(&loaded.settings, format);
    }
    process::pass_on_privilege();
    // `--cleanup-iptables` is the old name of `--cleanup`.
    if flags.is_on("cleanup") || flags.is_on("cleanup-iptables") {
        return clean_up(loaded);
    }
    start::start(loaded, flags)
}

fn render_manifests(settings: &Settings, format: RenderFormat) -> Result<(), Failure> {
    let mut output = io::BufWriter::new(io::stdout().lock());
    match render::render(settings, format, &mut output, &mut io::stderr().lock()) {
        // The reader closed the pipe early, such as `head`.
        Err(RenderError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

/// Removes what any backend has programmed. Needs no cluster.
fn clean_up(loaded: &Loaded) -> Result<(), Failure> {
    let backends = backends::all(loaded, &Default::default(), &Default::default())?;
    proxier::clean_up(&backends).map_err(|error| {
        let why = ErrorChain(&error);
        format!("encountered an error while tearing down rules: {why}").into()
    })
}
