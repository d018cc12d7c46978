//! Every packet case as its own test, against the real proxy and the real kernel. The program
//! `service-conformance` runs the same for anybody.
//!
//! `SWITCHYARD_BIN` names the proxy (else: the program that cargo built), `SWITCHYARD_BACKENDS` the
//! backends as a comma-separated list (else: all that are built and that this kernel can run).
//! `SWITCHYARD_CASES` has parts of names, separated by blanks, and a case runs if its name contains
//! one of these (else: all, of which a selection by JSON). Where `KUBE_PROXY` names genuine
//! kube-proxy, the cases run with it as well.

use std::{env, path::PathBuf, process::ExitCode};

use libtest_mimic::Arguments;
use packet_rig::{Result, Subject, Suite, backend, binary, chain};

fn main() -> ExitCode {
    match run(Arguments::from_args()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("packet cases cannot be run: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    let binary = match arguments.list {
        true => PathBuf::new(),
        false => binary::find()?,
    };
    let backends = backend::selected_and_references()?;
    let subjects: Result<_> = backends.iter().map(|name| Subject::new(name, &binary)).collect();
    let wanted = env::var("SWITCHYARD_CASES").unwrap_or_default();
    let suite = Suite::new(subjects?, &wanted, backend::are_chosen())?;
    Ok(suite.run(arguments, None)?.exit_code())
}
