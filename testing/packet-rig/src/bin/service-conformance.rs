//! Shows what a proxy of Services does with the packet cases of Switchyard, in network namespaces.
//!
//! ```text
//! service-conformance [--backend NAMES] [OPTION ...] [PART ...]
//! service-conformance --proxy COMMAND --name NAME [--mode MODE] [OPTION ...] [PART ...]
//! ```
//!
//! The first form runs the program `switchyard` beside this one, or the one that `SWITCHYARD_BIN`
//! names. The command of another proxy has `{kubeconfig}` where the file of an API server belongs
//! that serves the objects of a case, and may have `{flags}` where the flags of kube-proxy belong
//! that a case asks for (`api-standin`, beside this program, is the server). A proxy that takes no
//! such flags is not asked for what they bring about. What the cases except of a mode is not asked
//! of a proxy of this mode, either. `--help` prints the options.

use std::{fs, path::PathBuf, process::ExitCode};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use libtest_mimic::Arguments;
use packet_rig::{
    CommandLine, Result, RigError, Subject, Suite, backend, binary, chain, page::page,
};

fn main() -> ExitCode {
    match run(&options().get_matches()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("service-conformance: {}", chain(&error));
            ExitCode::from(2)
        }
    }
}

fn options() -> Command {
    let option = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    let path = value_parser!(PathBuf);
    Command::new("service-conformance").about("Runs the packet cases with a proxy").args([
        option("backend", "NAMES", "The backends of switchyard, separated by commas")
            .default_value("nftables")
            .value_parser(backend::parse),
        option("proxy", "COMMAND", "Another proxy: its program and arguments")
            .value_parser(CommandLine::parse)
            .conflicts_with("backend")
            .requires("name"),
        option("name", "NAME", "The name of the other proxy's results").requires("proxy"),
        option("mode", "MODE", "The mode of the other proxy").requires("proxy"),
        option("results", "DIRECTORY", "Adds the results to those in the directory")
            .value_parser(path.clone()),
        option("page", "FILE", "Writes a page of all results in the directory")
            .value_parser(path)
            .requires("results"),
        option("jobs", "NUMBER", "The cases at a time [default: 4]")
            .value_parser(value_parser!(usize)),
        Arg::new("list")
            .long("list")
            .action(ArgAction::SetTrue)
            .help("Prints the names of the cases, in place of running them"),
        Arg::new("PART")
            .action(ArgAction::Append)
            .help("Runs the cases whose names contain one of the parts, else all"),
    ])
}

fn run(options: &ArgMatches) -> Result<ExitCode> {
    let text = |name| options.get_one::<String>(name).map(String::as_str);
    let file = |name| options.get_one::<PathBuf>(name);
    let arguments = Arguments {
        list: options.get_flag("list"),
        test_threads: options.get_one("jobs").copied(),
        ..Arguments::default()
    };
    let subjects = match (options.get_one::<CommandLine>("proxy"), text("name")) {
        (Some(proxy), Some(name)) => {
            let usual = if backend::is_known(name) { backend::mode(name) } else { "nftables" };
            vec![proxy.clone().named(name, text("mode").unwrap_or(usual))]
        }
        _ => {
            let program = if arguments.list { PathBuf::new() } else { binary::find()? };
            let backends = options.get_one::<Vec<&'static str>>("backend").into_iter().flatten();
            backends.map(|name| Subject::new(name, &program)).collect::<Result<_>>()?
        }
    };
    let parts: Vec<_> =
        options.get_many("PART").into_iter().flatten().map(String::as_str).collect();
    let suite = Suite::new(subjects, &parts.join(" "), true)?;
    let conclusion = suite.run(arguments, file("results").map(PathBuf::as_path))?;
    if let (Some(results), Some(file)) = (file("results"), file("page")) {
        let written = fs::write(file, page(results)?);
        written.map_err(RigError::io(format!("write {}", file.display())))?;
    }
    Ok(conclusion.exit_code())
}
