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
//! of a proxy of this mode, either. A case runs if its name contains one of the parts; without
//! parts, all do.
//!
//! - `--results DIRECTORY`: adds the results to those in the directory.
//! - `--page FILE`: writes a page of all results in the directory.
//! - `--jobs NUMBER`: the cases at a time, of which there are four else.
//! - `--list`: prints the names of the cases, in place of running them.

use std::{env, fs, path::PathBuf, process::ExitCode};

use libtest_mimic::Arguments;
use packet_rig::{
    CommandLine, Result, RigError, Subject, Suite, backend, binary, chain, page::page,
};

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("service-conformance: {}", chain(&error));
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode> {
    let wrong = |message: String| RigError::Setup(message);
    let mut arguments = Arguments::default();
    let (mut backends, mut wanted) = (None, Vec::new());
    let (mut proxy, mut name, mut mode) = (None, None, None);
    let (mut results, mut file) = (None, None);
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| wrong(format!("{word} needs a value")));
        match word.as_str() {
            "--backend" => backends = Some(value()?),
            "--proxy" => proxy = Some(CommandLine::parse(&value()?)?),
            "--name" => name = Some(value()?),
            "--mode" => mode = Some(value()?),
            "--results" => results = Some(PathBuf::from(value()?)),
            "--page" => file = Some(PathBuf::from(value()?)),
            "--list" => arguments.list = true,
            "--jobs" => {
                let number = value()?.parse();
                arguments.test_threads =
                    Some(number.map_err(|_| wrong("--jobs needs a number".to_owned()))?);
            }
            option if option.starts_with('-') => return Err(wrong(format!("{option}: unknown"))),
            _ => wanted.push(word),
        }
    }
    if file.is_some() && results.is_none() {
        return Err(wrong("--page needs --results, which the page is of".to_owned()));
    }
    let subjects = match (proxy, name) {
        (Some(proxy), Some(name)) if backends.is_none() => {
            let usual = if backend::is_known(&name) { backend::mode(&name) } else { "nftables" };
            vec![proxy.named(&name, mode.as_deref().unwrap_or(usual))]
        }
        (None, None) if mode.is_none() => {
            let program = if arguments.list { PathBuf::new() } else { binary::find()? };
            let backends = backend::parse(backends.as_deref().unwrap_or("nftables"))?;
            backends.iter().map(|name| Subject::new(name, &program)).collect::<Result<_>>()?
        }
        _ => {
            let message =
                "--proxy and --name belong together, without --backend; --mode goes with them";
            return Err(wrong(message.to_owned()));
        }
    };
    let suite = Suite::new(subjects, &wanted.join(" "), true)?;
    let conclusion = suite.run(arguments, results.as_deref())?;
    if let (Some(results), Some(file)) = (results, file) {
        let written = fs::write(&file, page(&results)?);
        written.map_err(RigError::io(format!("write {}", file.display())))?;
    }
    Ok(conclusion.exit_code())
}
