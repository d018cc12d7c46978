//! Every case of `cases/*.yaml` as a test of its own, against the real proxy and the real kernel.
//!
//! `SWITCHYARD_BIN` names the proxy (else: what cargo built), `SWITCHYARD_BACKENDS` the backends
//! as a comma-separated list (else: all that are built). Four cases run at a time unless `--test-threads`
//! says otherwise. A case that this machine cannot run is reported as ignored, with the reason.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use packet_rig::{Case, RigError, capability, proxy, run_case};

/// The backends that are built.
const BUILT: &str = "nftables,iptables";

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(4));
    match trials(arguments.list) {
        Ok(trials) => libtest_mimic::run(&arguments, trials).exit_code(),
        Err(error) => {
            eprintln!("packet cases cannot be run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn trials(only_listed: bool) -> Result<Vec<Trial>, RigError> {
    let binary = match only_listed {
        true => PathBuf::new(),
        false => {
            capability::can_build_namespaces()?;
            proxy::find_binary()?
        }
    };
    let backends = env::var("SWITCHYARD_BACKENDS").unwrap_or_else(|_| BUILT.to_owned());
    let mut trials = Vec::new();
    for file in case_files()? {
        let subject = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for case in Case::load(&file)? {
            let case = Arc::new(case);
            for backend in backends.split(',') {
                let name = format!("{backend}::{subject}::{}", case.name);
                trials.push(trial(name, Arc::clone(&case), backend.to_owned(), binary.clone()));
            }
        }
    }
    Ok(trials)
}

fn trial(name: String, case: Arc<Case>, backend: String, binary: PathBuf) -> Trial {
    Trial::ignorable_test(name, move || {
        if let Some(reason) = case.not_for(&backend) {
            return Ok(Completion::ignored_with(format!("not with {backend}: {reason}")));
        }
        if let Some(reason) = case.not_runnable() {
            return Ok(Completion::ignored_with(format!("not runnable: {reason}")));
        }
        run_case(&case, &backend, &binary).map_err(Failed::from)?;
        Ok(Completion::Completed)
    })
}

fn case_files() -> Result<Vec<PathBuf>, RigError> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    let failed = |source| RigError::File { action: "read", path: directory.clone(), source };
    let mut files: Vec<PathBuf> = fs::read_dir(&directory)
        .map_err(failed)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    Ok(files)
}
