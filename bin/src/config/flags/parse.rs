//! The parser of arguments to [`Flags`], which accepts what kube-proxy accepts: `--name value` or
//! `--name=value`, underscores in place of hyphens, and switches without a value.

use std::ffi::OsString;

use clap::{
    Arg, ArgAction, ArgMatches, Command,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::{Flag, Flags, Given, Kind, Precedence, table::FLAGS, value};

/// Why arguments were rejected, in pflag's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    #[error("unknown flag: {0}")]
    UnknownFlag(String),
    #[error("flag needs an argument: {0}")]
    NoValue(String),
    /// The value of a flag is not of the flag's kind.
    #[error("invalid argument {text:?} for \"{name}\" flag: {why}")]
    BadValue {
        /// The flag, with hyphens.
        name: String,
        text: String,
        /// The problem with the value.
        why: String,
    },
    /// An argument belongs to no flag.
    #[error("unknown command {0:?}")]
    Argument(String),
    #[error("argument {0:?} is not Unicode")]
    NotUnicode(OsString),
    /// Any other error, in the words of clap.
    #[error("{0}")]
    Other(String),
}

/// Adds every flag of the table to `command`.
pub fn with_flags(command: Command) -> Command {
    let command = FLAGS.iter().fold(command, |command, flag| command.arg(argument(flag)));
    // Other arguments are collected here, and rejected by name unless they are empty.
    command.arg(Arg::new(LEFT_OVER).num_args(0..).hide(true))
}

const LEFT_OVER: &str = "left over";

fn argument(flag: &'static Flag) -> Arg {
    let mut argument = Arg::new(flag.name)
        .long(flag.name)
        .action(ArgAction::Append)
        .hide(!flag.is_shown())
        .value_name(placeholder(flag.kind))
        .help(help(flag));
    if let Some(letter) = flag.short {
        argument = argument.short(letter);
    }
    if flag.kind.stands_alone() {
        argument.num_args(0..=1).require_equals(true).default_missing_value("true")
    } else {
        argument.num_args(1).allow_hyphen_values(true)
    }
}

fn help(flag: &Flag) -> String {
    match flag.default {
        "" => flag.help.into(),
        default => format!("{} [default: {default}]", flag.help),
    }
}

/// The placeholder of the value in help.
pub fn placeholder(kind: Kind) -> &'static str {
    match kind {
        Kind::Switch => "BOOL",
        Kind::Text => "TEXT",
        Kind::Int32 | Kind::Uint32 => "NUMBER",
        Kind::Float32 => "DECIMAL",
        Kind::Duration | Kind::Limit => "DURATION",
        Kind::List => "TEXT,...",
        Kind::Gates => "NAME=BOOL,...",
        Kind::Levels => "PATTERN=NUMBER,...",
        Kind::Ip => "IP",
        Kind::Listen => "IP[:PORT]",
        Kind::Quantity => "BYTES",
        Kind::Word(_) => "WORD",
        Kind::Version => "VERSION",
    }
}

/// Returns the arguments that belong to no flag.
pub fn words(matches: &ArgMatches) -> impl Iterator<Item = &str> {
    let words = matches.get_many::<String>(LEFT_OVER).into_iter().flatten();
    words.map(String::as_str).filter(|word| !word.is_empty())
}

/// Returns the flags that clap found. Other arguments are an error, unless the command takes words.
pub fn flags(
    matches: &ArgMatches,
    precedence: Precedence,
    takes_words: bool,
) -> Result<Flags, UsageError> {
    if let Some(argument) = words(matches).next().filter(|_| !takes_words) {
        return Err(UsageError::Argument(argument.to_owned()));
    }
    let mut given = Vec::new();
    for flag in FLAGS {
        given.extend(one(flag, matches.get_many::<String>(flag.name).into_iter().flatten())?);
    }
    Ok(Flags { given, precedence })
}

fn one<'a>(
    flag: &'static Flag,
    texts: impl Iterator<Item = &'a String>,
) -> Result<Option<Given>, UsageError> {
    let mut given: Option<Given> = None;
    for text in texts {
        let value = value::read(flag.kind, text).map_err(|why| {
            let name = match flag.short {
                Some(letter) => format!("-{letter}, --{}", flag.name),
                None => format!("--{}", flag.name),
            };
            UsageError::BadValue { name, text: text.clone(), why }
        })?;
        given = Some(match given {
            Some(before) => {
                let value = value::join(before.value, value);
                let grows = matches!(flag.kind, Kind::List | Kind::Gates | Kind::Levels);
                let text = if grows { format!("{},{text}", before.text) } else { text.clone() };
                Given { name: flag.name, value, text }
            }
            None => Given { name: flag.name, value, text: text.clone() },
        });
    }
    Ok(given)
}

/// Returns the arguments with hyphens in the names of flags: `--proxy_mode=x` means
/// `--proxy-mode=x`.
pub fn normalized(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Vec<String>, UsageError> {
    let mut flags_end = false;
    let normalize = |argument: OsString| {
        let text = argument.into_string().map_err(UsageError::NotUnicode)?;
        flags_end |= text == "--";
        Ok(match text.strip_prefix("--") {
            Some(flag) if !flags_end => {
                let (name, value) = flag.split_at(flag.find('=').unwrap_or(flag.len()));
                format!("--{}{value}", name.replace('_', "-"))
            }
            _ => text,
        })
    };
    arguments.into_iter().map(normalize).collect()
}

/// Converts clap's error into pflag's words.
pub fn usage_error(error: &clap::Error) -> UsageError {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let argument = || {
        let text = context(ContextKind::InvalidArg).unwrap_or_default();
        text.split([' ', '=']).next().unwrap_or_default().to_owned()
    };
    match error.kind() {
        ErrorKind::UnknownArgument if argument().starts_with('-') => {
            UsageError::UnknownFlag(argument())
        }
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => {
            UsageError::Argument(argument())
        }
        ErrorKind::InvalidValue | ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues
            if context(ContextKind::InvalidValue).is_none_or(|value| value.is_empty()) =>
        {
            UsageError::NoValue(argument())
        }
        _ => {
            // With the values that are possible, or the arguments that are missing.
            let text = error.to_string();
            let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
            let line = lines.collect::<Vec<_>>().join(" ");
            UsageError::Other(line.trim_start_matches("error: ").to_owned())
        }
    }
}
