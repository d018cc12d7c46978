//! The parser of the command line.

use std::{ffi::OsString, fmt};

use clap::{Arg, Command, builder::PossibleValuesParser, error::ErrorKind};

use crate::config::{
    flags::{
        CalledAs, Flags,
        parse::{self, UsageError},
    },
    manual,
};

/// The command line, parsed.
#[derive(Clone, Debug)]
pub struct Cli {
    /// The name that the program was called by.
    pub called_as: CalledAs,
    /// The format of the rules to print instead of proxying, if the subcommand `render` was given.
    pub render: Option<RenderFormat>,
    /// The format of the report, if the subcommand `doctor` was given.
    pub doctor: Option<OutputFormat>,
    /// The flags that were given.
    pub flags: Flags,
}

/// The formats of `render`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenderFormat {
    /// The syntax of nft.
    Nft,
    /// libnftables JSON.
    Json,
}

/// The formats of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// For people.
    Text,
    /// JSON.
    Json,
}

/// Why the program ends without running.
#[derive(Clone, Debug)]
pub enum EarlyExit {
    /// Help, completions or the manual page were requested; this is the text.
    Help(String),
    /// The arguments were rejected.
    Usage {
        /// The usage text.
        usage: String,
        /// Why the arguments were rejected.
        error: UsageError,
    },
}

impl fmt::Display for EarlyExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Help(text) => f.write_str(text),
            Self::Usage { usage, error } => writeln!(f, "{usage}\nError: {error}"),
        }
    }
}

const RENDER: &str = "render";
const DOCTOR: &str = "doctor";
const FORMAT: &str = "format";
const OUTPUT: &str = "output";

/// Parses the arguments, the first of which is the program's name.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, EarlyExit> {
    let mut called_as = CalledAs::Switchyard;
    let parse = |command: &mut Command| {
        let arguments = parse::normalized(arguments)?;
        called_as = CalledAs::from_program(arguments.first());
        *command = std::mem::take(command).name(called_as.as_str());
        Ok(command.try_get_matches_from_mut(arguments))
    };
    let mut command = command();
    let parsed = parse(&mut command);
    let usage =
        |error| EarlyExit::Usage { usage: command.clone().render_help().to_string(), error };
    let matches = match parsed.map_err(usage)? {
        Ok(matches) => matches,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            return Err(EarlyExit::Help(error.to_string()));
        }
        Err(error) => return Err(usage(parse::usage_error(&error))),
    };
    let (mut render, mut doctor) = (None, None);
    let matches = match matches.subcommand() {
        Some((RENDER, matches)) => {
            render = Some(format(matches));
            matches
        }
        Some((DOCTOR, matches)) => {
            doctor = Some(output_format(matches));
            matches
        }
        Some((_, matches)) => {
            return Err(EarlyExit::Help(manual::text(matches, command.name("switchyard"))));
        }
        None => &matches,
    };
    let flags = parse::flags(matches, called_as.precedence()).map_err(usage)?;
    Ok(Cli { called_as, render, doctor, flags })
}

fn command() -> Command {
    let render = Command::new(RENDER)
        .about("Print the rules that would be programmed on this node, without privileges")
        .arg(
            Arg::new(FORMAT)
                .long(FORMAT)
                .value_name("FORMAT")
                .help("nft for the syntax of nft, json for libnftables JSON")
                .value_parser(PossibleValuesParser::new(["nft", "json"]))
                .default_value("nft"),
        );
    let doctor = Command::new(DOCTOR)
        .about("Find what on this node keeps Services from working; changes nothing")
        .after_help(
            "Exit status: 0 without findings, 1 with warnings, 2 with errors, 3 on failure.",
        )
        .arg(
            Arg::new(OUTPUT)
                .long(OUTPUT)
                .short('o')
                .value_name("FORMAT")
                .help("text, or json for programs")
                .value_parser(PossibleValuesParser::new(["text", "json"]))
                .default_value("text"),
        );
    let main = Command::new("switchyard")
        .about("Implements Kubernetes Services on this node.")
        .max_term_width(100)
        .disable_help_subcommand(true)
        .args_conflicts_with_subcommands(true);
    parse::with_flags(main)
        .subcommand(parse::with_flags(render))
        .subcommand(parse::with_flags(doctor))
        .subcommands(manual::subcommands())
}

fn format(matches: &clap::ArgMatches) -> RenderFormat {
    match matches.get_one::<String>(FORMAT).map(String::as_str) {
        Some("json") => RenderFormat::Json,
        _ => RenderFormat::Nft,
    }
}

fn output_format(matches: &clap::ArgMatches) -> OutputFormat {
    match matches.get_one::<String>(OUTPUT).map(String::as_str) {
        Some("json") => OutputFormat::Json,
        _ => OutputFormat::Text,
    }
}
