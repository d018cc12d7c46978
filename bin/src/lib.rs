//! The parts of the `switchyard` program, as a library so that tests can reach them.
//!
//! [`main`] reads the command line ([`cli`], [`flags`]) and the configuration ([`config`]), and then does one
//! of three things: proxy ([`run`]), print what would be programmed ([`render`]), or clean up.

use std::{
    error::Error,
    ffi::OsString,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use crate::{
    cli::{Cli, Ended, RenderFormat},
    config::{
        Loaded,
        settings::{LogSettings, Settings},
    },
    flags::{Flags, Status, table},
    render::RenderError,
};

pub mod backend;
pub mod cli;
pub mod config;
pub mod config_watch;
pub mod events;
pub mod feed;
pub mod flags;
pub mod flows;
pub mod health;
pub mod http;
pub mod logging;
pub mod metrics;
pub mod node;
pub mod node_addresses;
pub mod observe;
pub mod privilege;
pub mod reload;
pub mod render;
pub mod run;
pub mod select;
pub mod signals;
pub mod source;
pub mod sysctl;
pub mod version;

/// Why the program ends with a status other than 0.
type Failure = Box<dyn Error + Send + Sync>;

/// Runs the program with these arguments, the first of which is its name. Whatever fails makes its
/// status 1, as it makes kube-proxy's.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match cli::parse(arguments) {
        Ok(cli) => cli,
        Err(Ended::Help(text)) => return say(&text),
        Err(usage) => {
            // If that is impossible there is nowhere left to say so.
            let _ = write!(io::stderr(), "{usage}");
            return ExitCode::FAILURE;
        }
    };
    for notice in cli.flags.notices() {
        let _ = writeln!(io::stderr(), "{notice}");
    }
    if let Some(version) = version::answer(&cli.flags, cli.called_as) {
        return say(&format!("{version}\n"));
    }
    version::report(&cli.flags);
    match signals::end_first_process().map_err(Failure::from).and_then(|()| act(&cli)) {
        Ok(()) => {
            logging::flush();
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!(err = error_chain(error.as_ref()), "command failed");
            logging::flush();
            ExitCode::FAILURE
        }
    }
}

fn say(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn act(cli: &Cli) -> Result<(), Failure> {
    let loaded = load(&cli.flags)?;
    operate(cli, &loaded).inspect_err(|error| {
        tracing::error!(err = error_chain(error.as_ref()), "Error running ProxyServer");
    })
}

/// Does what the flags ask for.
fn operate(cli: &Cli, loaded: &Loaded) -> Result<(), Failure> {
    let flags = &cli.flags;
    if let Some(path) = flags.text("write-config-to") {
        config::write::write(&loaded.config, Path::new(path))?;
        tracing::info!(file = path, "Wrote configuration");
        return Ok(());
    }
    if let Some(format) = cli.render {
        return render_manifests(&loaded.settings, format);
    }
    privilege::pass_on();
    // The second is what the first was called once.
    if flags.is_on("cleanup") || flags.is_on("cleanup-iptables") {
        return cleanup(&loaded.settings);
    }
    proxy(loaded, flags)
}

/// Prepares the node, and then proxies unless that was all.
fn proxy(loaded: &Loaded, flags: &Flags) -> Result<(), Failure> {
    let (settings, mode_replaced) = in_mode(loaded)?;
    if let Some(conntrack) = &settings.conntrack
        && let Err(error) = sysctl::Kernel::default().set_conntrack(conntrack)
    {
        let why = error_chain(&error);
        if conntrack.is_asked_for {
            return Err(format!(
                "could not set conntrack parameters from kube-proxy configuration: {why}"
            )
            .into());
        }
        tracing::warn!(err = why, "Connection tracking keeps its limits and timeouts");
    }
    if flags.is_on("init-only") {
        backend::prepare(&settings)?;
        tracing::info!(mode = %settings.backend.mode, "The node is ready");
        return Ok(());
    }
    if let Some(score) = settings.oom_score_adj {
        sysctl::set_oom_score_adj(score);
    }
    tracing::info!(
        version = version::OURS,
        mode = %settings.backend.mode,
        node = settings.node.node_name.as_str(),
        "Starting"
    );
    match run::run(&settings, loaded, flags, mode_replaced) {
        Ok(never) => match never {},
        Err(error) => Err(error.into()),
    }
}

/// The settings in the mode that is configured, or in the best that this node can run; and why the
/// configured one is not used, if it is not.
fn in_mode(loaded: &Loaded) -> Result<(Settings, Option<String>), Failure> {
    let backend = &loaded.settings.backend;
    let chosen = select::choose(loaded.named_mode(), |mode| select::probe(mode, backend))?;
    for (mode, lacking) in &chosen.passed_over {
        tracing::info!(%mode, %lacking, "This node cannot run the mode");
    }
    if let Some(warning) = &chosen.warning {
        tracing::warn!(warning = warning.as_str(), "Using another mode");
    }
    Ok((loaded.with_mode(chosen.mode)?, chosen.warning))
}

fn cleanup(settings: &Settings) -> Result<(), Failure> {
    run::cleanup(settings).map_err(|error| {
        let why = error_chain(&error);
        format!("encountered an error while tearing down rules: {why}").into()
    })
}

fn render_manifests(settings: &Settings, format: RenderFormat) -> Result<(), Failure> {
    let mut output = io::BufWriter::new(io::stdout().lock());
    match render::render(settings, format, &mut output, &mut io::stderr().lock()) {
        // Whoever reads has seen enough.
        Err(RenderError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

/// Loads the configuration, and starts logging as it says.
fn load(flags: &Flags) -> Result<Loaded, Failure> {
    let completed = match config::complete(flags) {
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
        tracing::warn!(warning = warning.as_str(), "Doubtful configuration");
    }
    Ok(loaded)
}

/// Logs every flag, as kube-proxy does: what is not given has its default.
fn log_flags(flags: &Flags) {
    for flag in table::FLAGS.iter().filter(|flag| !matches!(flag.status, Status::Gone(_))) {
        let value = flags.written(flag.name).unwrap_or(flag.default);
        // As a whole line, as there.
        tracing::info!(target: "switchyard::line::v1", "FLAG: --{}={value:?}", flag.name);
    }
}

fn start_log(settings: &LogSettings) -> Result<(), Failure> {
    Ok(logging::start(settings)?)
}

/// The text of an error and of everything that caused it.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors tell their cause themselves.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
