//! The command line: which flags were given, and to which of the program's names.

use std::{ffi::OsString, fmt, path::Path};

use clap::{Arg, Command, builder::PossibleValuesParser, error::ErrorKind};

use crate::flags::{
    Flags, Precedence,
    parse::{self, UsageError},
};

/// What the program was called as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalledAs {
    /// `kube-proxy`: in its place, by who knows nothing of us.
    KubeProxy,
    /// Anything else.
    Switchyard,
}

impl CalledAs {
    /// By the first argument.
    fn of(program: Option<&String>) -> Self {
        let name = program.and_then(|path| Path::new(path).file_name());
        if name.is_some_and(|name| name == "kube-proxy") {
            Self::KubeProxy
        } else {
            Self::Switchyard
        }
    }

    /// The name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::KubeProxy => "kube-proxy",
            Self::Switchyard => "switchyard",
        }
    }

    /// Whose word counts if both a flag and the file have one.
    pub fn precedence(self) -> Precedence {
        match self {
            Self::KubeProxy => Precedence::File,
            Self::Switchyard => Precedence::Flags,
        }
    }
}

/// What the program was told.
#[derive(Clone, Debug)]
pub struct Cli {
    /// By this name.
    pub called_as: CalledAs,
    /// To print what would be programmed, instead of proxying.
    pub render: Option<RenderFormat>,
    /// With these flags.
    pub flags: Flags,
}

/// What `render` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenderFormat {
    /// nft's own syntax.
    Nft,
    /// libnftables JSON.
    Json,
}

/// Why there is nothing to run.
#[derive(Clone, Debug)]
pub enum Ended {
    /// Help was asked for, and this is it.
    Help(String),
    /// The arguments make no sense.
    Usage {
        /// What would.
        usage: String,
        /// Why not.
        error: UsageError,
    },
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Help(text) => f.write_str(text),
            Self::Usage { usage, error } => writeln!(f, "{usage}\nError: {error}"),
        }
    }
}

const RENDER: &str = "render";
const FORMAT: &str = "format";

/// Reads the arguments (the first is the program's name).
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, Ended> {
    let mut called_as = CalledAs::Switchyard;
    let parse = |command: &mut Command| {
        let arguments = parse::normalized(arguments)?;
        called_as = CalledAs::of(arguments.first());
        *command = std::mem::take(command).name(called_as.as_str());
        Ok(command.try_get_matches_from_mut(arguments))
    };
    let mut command = command();
    let parsed = parse(&mut command);
    let usage = |error| Ended::Usage { usage: command.clone().render_help().to_string(), error };
    let matches = match parsed.map_err(usage)? {
        Ok(matches) => matches,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            return Err(Ended::Help(error.to_string()));
        }
        Err(error) => return Err(usage(parse::usage_error(&error))),
    };
    let (render, matches) = match matches.subcommand() {
        Some((_, matches)) => (Some(format(matches)), matches),
        None => (None, &matches),
    };
    let flags = parse::flags(matches, called_as.precedence()).map_err(usage)?;
    Ok(Cli { called_as, render, flags })
}

fn command() -> Command {
    let render = Command::new(RENDER)
        .about("Print what would be programmed on this node, without privileges")
        .arg(
            Arg::new(FORMAT)
                .long(FORMAT)
                .value_name("FORMAT")
                .help("nft for nft's own syntax, json for libnftables JSON")
                .value_parser(PossibleValuesParser::new(["nft", "json"]))
                .default_value("nft"),
        );
    let main = Command::new("switchyard")
        .about("Implements Kubernetes Services on this node.")
        .max_term_width(100)
        .disable_help_subcommand(true)
        .args_conflicts_with_subcommands(true);
    parse::with_flags(main).subcommand(parse::with_flags(render))
}

fn format(matches: &clap::ArgMatches) -> RenderFormat {
    match matches.get_one::<String>(FORMAT).map(String::as_str) {
        Some("json") => RenderFormat::Json,
        _ => RenderFormat::Nft,
    }
}
