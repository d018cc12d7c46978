//! The parser of the command line.

use std::{ffi::OsString, fmt, path::PathBuf, time::Duration};

use clap::{Arg, ArgAction, Command, builder::PossibleValuesParser, error::ErrorKind};

use crate::config::{
    duration::GoDuration,
    flags::{
        CalledAs, Flags,
        parse::{self, UsageError},
    },
    manual,
    validate::NOT_NEGATIVE,
};

/// The command line, parsed.
#[derive(Clone, Debug)]
pub struct Cli {
    /// The name that the program was called by.
    pub called_as: CalledAs,
    /// The subcommand; `None` to proxy.
    pub command: Option<Subcommand>,
    /// The flags that were given.
    pub flags: Flags,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subcommand {
    /// `render`: print the rules in this format.
    Render(RenderFormat),
    /// `doctor`: report what keeps Services from working.
    Doctor(OutputFormat),
    /// `explain`: answer a question.
    Explain(ExplainArguments),
    /// `verify`: compare what the kernel does with the objects.
    Verify(FromArguments),
    /// `top`: show the Services of the running proxy.
    Top(TopArguments),
    /// `trace`: follow packets of a connection.
    Trace(TraceArguments),
    /// `snapshot`: print what the running proxy knows.
    Snapshot,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainArguments {
    /// The question. A client and an address may be two words, as a shell takes `>` for itself.
    pub question: String,
    /// The format of the answer.
    pub format: OutputFormat,
    /// The snapshot to answer from.
    pub from: Option<PathBuf>,
    /// The age of the oldest changes that are asked for instead, if any are.
    pub since: Option<Duration>,
}

/// The arguments of `verify`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FromArguments {
    /// The format of the report.
    pub format: OutputFormat,
    /// The snapshot with the objects.
    pub from: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopArguments {
    /// Whether to print once, and not to draw.
    pub once: bool,
    /// The format of what is printed once.
    pub format: OutputFormat,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceArguments {
    /// The question, in the words of `explain`; the client `any` is left out.
    pub question: String,
    /// The format of the report.
    pub format: OutputFormat,
    /// The snapshot to compare with.
    pub from: Option<PathBuf>,
    /// The longest time.
    pub time: Duration,
    /// The most packets.
    pub packets: usize,
}

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
    Json,
}

/// Why the program ends without running.
#[derive(Clone, Debug)]
pub enum EarlyExit {
    /// Help, completions or the manual page were requested; this is the text.
    Help(String),
    /// The arguments were rejected.
    Usage {
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
const EXPLAIN: &str = "explain";
const SNAPSHOT: &str = "snapshot";
const TOP: &str = "top";
const ONCE: &str = "once";
const VERIFY: &str = "verify";
const FROM: &str = "from";
const SINCE: &str = "since";
const TRACE: &str = "trace";
const FOR: &str = "for";
const PACKETS: &str = "packets";
/// The flags that have the program do something else, which no subcommand takes.
const OF_PROXY_ALONE: [&str; 4] = ["write-config-to", "cleanup", "cleanup-iptables", "init-only"];
/// The times that `trace` takes.
const TRACE_TIMES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(600)];

/// Parses the arguments, the first of which is the program's name.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, EarlyExit> {
    let mut called_as = CalledAs::Switchyard;
    let mut first = None;
    let parse = |command: &mut Command| {
        let arguments = parse::normalized(arguments)?;
        called_as = CalledAs::from_program(arguments.first());
        first = arguments.get(1).cloned();
        *command = std::mem::take(command).name(called_as.as_str());
        Ok(command.try_get_matches_from_mut(arguments))
    };
    let mut command = command();
    let parsed = parse(&mut command);
    let usage = |error| {
        let mut command = command.clone();
        let of_subcommand = first.as_ref().and_then(|name| command.find_subcommand_mut(name));
        let usage = match of_subcommand {
            Some(one) => format!(
                "{}\n\nsee {} {} --help\n",
                one.render_usage(),
                called_as.as_str(),
                one.get_name()
            ),
            None => command.render_help().to_string(),
        };
        EarlyExit::Usage { usage, error }
    };
    let matches = match parsed.map_err(usage)? {
        Ok(matches) => matches,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            return Err(EarlyExit::Help(error.to_string()));
        }
        Err(error) => return Err(usage(parse::usage_error(&error))),
    };
    let (name, matches) = matches.subcommand().unwrap_or(("", &matches));
    let subcommand = match name {
        "" => None,
        RENDER => Some(Subcommand::Render(format(matches))),
        DOCTOR => Some(Subcommand::Doctor(output_format(matches))),
        EXPLAIN => Some(Subcommand::Explain(explain(matches))),
        VERIFY => Some(Subcommand::Verify(FromArguments {
            format: output_format(matches),
            from: from_file(matches),
        })),
        TOP => Some(Subcommand::Top(TopArguments {
            once: matches.get_flag(ONCE),
            format: output_format(matches),
        })),
        TRACE => Some(Subcommand::Trace(trace(matches))),
        SNAPSHOT => Some(Subcommand::Snapshot),
        _ => return Err(EarlyExit::Help(manual::text(matches, command.name("switchyard")))),
    };
    let takes_words = [EXPLAIN, TRACE].contains(&name);
    let flags = parse::flags(matches, called_as.precedence(), takes_words).map_err(usage)?;
    let is_given = |flag: &&&str| flags.written(flag).is_some();
    if let Some(flag) = OF_PROXY_ALONE.iter().find(is_given).filter(|_| subcommand.is_some()) {
        return Err(usage(UsageError::UnknownFlag(format!("--{flag}"))));
    }
    Ok(Cli { called_as, command: subcommand, flags })
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
        .arg(output("text, or json for programs"));
    let explain = Command::new(EXPLAIN)
        .about(
            "Explain where the traffic of a Service, or to an address, goes on this node, and why",
        )
        .after_help(
            "Exit status: 0 served, 1 refused, 2 dropped, 3 the kernel does otherwise, 4 unknown, \
             5 served but something is wrong.",
        )
        .override_usage(
            "switchyard explain NAMESPACE/NAME[:PORT] | [CLIENT] ADDRESS:PORT[/udp] [OPTIONS]\n       \
             switchyard explain --since DURATION [NAMESPACE/NAME] [OPTIONS]",
        )
        .arg(output("text, or json as docs/explain.schema.json describes it"))
        .arg(from("Answer from this file, which `switchyard snapshot` printed"))
        .arg(
            Arg::new(SINCE)
                .long(SINCE)
                .value_name("DURATION")
                .conflicts_with(FROM)
                .value_parser(age)
                .help("Print what has changed in this time, such as 10m, in the running proxy"),
        );
    let verify = Command::new(VERIFY)
        .about(
            "Compare what the kernel's tables do with packets to Services with what the objects ask \
             for; changes nothing",
        )
        .after_help("Exit status: 0 equal, 1 different, 3 on failure.")
        .arg(output("text, or json for programs"))
        .arg(from("Compare with this file, which `switchyard snapshot` printed"));
    let top = Command::new(TOP)
        .about("Show the Services of the running proxy with their traffic, as top shows processes")
        .after_help("Press ? for the keys. Exit status: 0, or 4 if nothing can be shown.")
        .arg(
            Arg::new(ONCE)
                .long(ONCE)
                .action(ArgAction::SetTrue)
                .help("Print all Services once, measured over a second"),
        )
        .arg(output("With --once: text, or json as docs/top.schema.json describes it"));
    let trace = Command::new(TRACE)
        .about(
            "Follow real packets of a connection through the tables of all programs, and compare their \
             way with the answer of explain",
        )
        .after_help(
            "Exit status: 0 as explained, 3 otherwise, 4 nothing was seen, 5 nothing to compare with, 1 on \
             failure.",
        )
        .override_usage("switchyard trace CLIENT|any ADDRESS:PORT[/udp|/sctp] [OPTIONS]")
        .arg(output("text, or json as docs/trace.schema.json describes it"))
        .arg(from("Compare with this file, which `switchyard snapshot` printed"))
        .arg(
            Arg::new(FOR)
                .long(FOR)
                .value_name("DURATION")
                .value_parser(trace_time)
                .default_value("30s")
                .help("The longest time, from 1s to 10m"),
        )
        .arg(
            Arg::new(PACKETS)
                .long(PACKETS)
                .value_name("NUMBER")
                .value_parser(clap::value_parser!(u32).range(1..=1000))
                .default_value("100")
                .help("The most packets, from 1 to 1000"),
        );
    let snapshot = Command::new(SNAPSHOT)
        .about("Print what the running proxy knows of the node and its Services, as JSON lines");
    let main = Command::new("switchyard")
        .about("Implements Kubernetes Services on this node.")
        .max_term_width(100)
        .disable_help_subcommand(true)
        .args_conflicts_with_subcommands(true);
    let main = parse::with_flags(main).subcommands(manual::subcommands());
    let with_flags = |command| {
        let hide = |command: Command, flag| command.mut_arg(flag, |flag: Arg| flag.hide(true));
        OF_PROXY_ALONE.into_iter().fold(parse::with_flags(command), hide)
    };
    [render, doctor, explain, verify, top, trace, snapshot]
        .into_iter()
        .fold(main, |main, command| main.subcommand(with_flags(command)))
}

fn format(matches: &clap::ArgMatches) -> RenderFormat {
    match matches.get_one::<String>(FORMAT).map(String::as_str) {
        Some("json") => RenderFormat::Json,
        _ => RenderFormat::Nft,
    }
}

/// The argument that chooses the format of a report.
fn output(help: &'static str) -> Arg {
    Arg::new(OUTPUT)
        .long(OUTPUT)
        .short('o')
        .value_name("FORMAT")
        .help(help)
        .value_parser(PossibleValuesParser::new(["text", "json"]))
        .default_value("text")
}

/// The argument that names a snapshot.
fn from(help: &'static str) -> Arg {
    Arg::new(FROM).long(FROM).value_name("FILE").help(help)
}

fn from_file(matches: &clap::ArgMatches) -> Option<PathBuf> {
    matches.get_one::<String>(FROM).map(PathBuf::from)
}

fn output_format(matches: &clap::ArgMatches) -> OutputFormat {
    match matches.get_one::<String>(OUTPUT).map(String::as_str) {
        Some("json") => OutputFormat::Json,
        _ => OutputFormat::Text,
    }
}

/// Reads the time of `explain --since`.
fn age(text: &str) -> Result<Duration, String> {
    let time = text.parse::<GoDuration>().map_err(|error| error.to_string())?;
    (!time.is_negative()).then(|| time.to_std()).ok_or_else(|| NOT_NEGATIVE.to_owned())
}

/// Reads the time of `trace`.
fn trace_time(text: &str) -> Result<Duration, String> {
    let time = text.parse::<GoDuration>().map_err(|error| error.to_string())?.to_std();
    let [least, most] = TRACE_TIMES;
    let is_allowed = (least..=most).contains(&time);
    is_allowed.then_some(time).ok_or_else(|| "not from 1s to 10m".to_owned())
}

fn trace(matches: &clap::ArgMatches) -> TraceArguments {
    let question = question(matches);
    let [least, _] = TRACE_TIMES;
    TraceArguments {
        question: match question.split_once("->") {
            Some((client, to)) if client.trim() == "any" => to.trim().to_owned(),
            _ => question,
        },
        format: output_format(matches),
        from: from_file(matches),
        // Both have defaults.
        time: matches.get_one(FOR).copied().unwrap_or(least),
        packets: matches.get_one::<u32>(PACKETS).map_or(1, |number| *number as usize),
    }
}

/// The question of `explain` or `trace`, with the arrow that may be left out.
fn question(matches: &clap::ArgMatches) -> String {
    let words: Vec<&str> = parse::words(matches).filter(|word| *word != "->").collect();
    words.join(" -> ")
}

fn explain(matches: &clap::ArgMatches) -> ExplainArguments {
    ExplainArguments {
        question: question(matches),
        format: output_format(matches),
        from: from_file(matches),
        since: matches.get_one(SINCE).copied(),
    }
}
