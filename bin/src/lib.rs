//! The parts of the `switchyard` program, as a library so that tests can reach them.
//!
//! [`main`] reads the command line ([`cli`]) and the configuration ([`config`]), and then does one
//! of three things: proxy ([`run`]), print what would be programmed ([`render`]), or clean up.

use std::{convert::Infallible, error::Error, ffi::OsString, io, process::ExitCode};

use crate::{
    cli::{Cli, Command, Flags, Render},
    config::{Loaded, settings::LogSettings},
    render::RenderError,
};

pub mod backend;
pub mod cli;
pub mod config;
pub mod events;
pub mod feed;
pub mod flows;
pub mod health;
pub mod http;
pub mod logging;
pub mod metrics;
pub mod node_addresses;
pub mod observe;
pub mod render;
pub mod run;
pub mod source;

/// Why the program ends with a status other than 0.
type Failure = Box<dyn Error + Send + Sync>;

/// Runs the program with these arguments, the first of which is its name. Whatever fails makes its
/// status 1, as it makes kube-proxy's.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match cli::parse(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Where to is clap's decision: help and version are no errors. If that is impossible
            // there is nowhere left to say so.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    let result = match cli {
        Cli { command: Some(Command::Render(render)), .. } => render_manifests(&render),
        Cli { flags, cleanup: true, .. } => cleanup(&flags),
        Cli { flags, .. } => proxy(&flags).map(|never| match never {}),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(err = error_chain(error.as_ref()), "command failed");
            ExitCode::FAILURE
        }
    }
}

fn proxy(flags: &Flags) -> Result<Infallible, Failure> {
    let Loaded { settings, config, .. } = load(flags)?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        mode = %settings.backend.mode,
        node = settings.node.node_name.as_str(),
        "Starting"
    );
    run::run(&settings, &config).map_err(|error| {
        tracing::error!(err = error_chain(&error), "Error running the proxy");
        error.into()
    })
}

fn cleanup(flags: &Flags) -> Result<(), Failure> {
    let Loaded { settings, .. } = load(flags)?;
    run::cleanup(&settings).map_err(|error| {
        let why = error_chain(&error);
        format!("encountered an error while tearing down rules: {why}").into()
    })
}

fn render_manifests(render: &Render) -> Result<(), Failure> {
    let Loaded { settings, .. } = load(&render.flags)?;
    let mut output = io::BufWriter::new(io::stdout().lock());
    match render::render(&settings, render.format, &mut output, &mut io::stderr().lock()) {
        // Whoever reads has seen enough.
        Err(RenderError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

/// Loads the configuration, and starts logging as it says.
fn load(flags: &Flags) -> Result<Loaded, Failure> {
    match config::load(flags) {
        Ok(loaded) => {
            start_log(&loaded.settings.log)?;
            for warning in &loaded.warnings {
                tracing::warn!(warning = warning.as_str(), "Doubtful configuration");
            }
            Ok(loaded)
        }
        Err(error) => {
            start_log(&config::log_flags(flags))?;
            Err(error.into())
        }
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
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
