//! Every case of `cases/*.yaml` as its own test, against the real proxy and the real kernel.
//!
//! `SWITCHYARD_BIN` names the proxy (else: the program that cargo built), `SWITCHYARD_BACKENDS` the
//! backends as a comma-separated list (else: all that are built and that this kernel can run). Four
//! cases run at a time unless `--test-threads` asks for another number. `SWITCHYARD_CASES` has
//! parts of names, separated by spaces, and a case runs if its name contains one of these (else:
//! all, of which a selection by JSON). Where `KUBE_PROXY` names genuine kube-proxy, the cases run
//! with it as well; those that name a difference must fail with it. A case that this machine cannot
//! run is reported as ignored, with the reason. `SWITCHYARD_RESULTS` names a directory for the results
//! (`make conformance`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use packet_rig::{
    Case, Failure, RigError, backend, binary, capability, chain, kube_proxy,
    kube_proxy::Release,
    results::{Outcome, Results},
    run_case,
};

/// The results of each backend.
static RESULTS: Mutex<BTreeMap<&str, BTreeMap<String, Outcome>>> = Mutex::new(BTreeMap::new());

/// Names the variable that chooses cases.
const CASES: &str = "SWITCHYARD_CASES";

/// The beginning of a difference of timing, with which kube-proxy may do as the case expects.
const SOMETIMES: &str = "Sometimes";

/// The backend that programs the rules of another one by another transport.
const BY_JSON: &str = "nftables-json";

/// The cases that run by JSON unless backends or cases are chosen. The rules are those of the
/// nftables backend, with which all cases run; these write each statement and each kind of set, map
/// and element by JSON, delete them, and read them at a restart.
const CASES_BY_JSON: [&str; 27] = [
    "addresses::mixed-families",
    "addresses::same-address-on-two-ports",
    "affinity::expires",
    "affinity::same-endpoint",
    "affinity::survives-other-changes",
    "affinity::switched-on-and-off",
    "changes::many-sizes",
    "changes::service-cidrs-change",
    "changes::services-come-and-go",
    "clusterip::hairpin",
    "clusterip::sctp",
    "detect-local::bridge-and-cluster-cidr",
    "detect-local::interface-name-prefix",
    "lb-algorithm::maglev",
    "lb-algorithm::round-robin",
    "lb-algorithm::source-hash",
    "loadbalancer::source-ranges",
    "loadbalancer::source-ranges-change",
    "localhost::beside-primary",
    "mark::another-bit",
    "nodeport::all-addresses",
    "nodeport::chosen-networks",
    "policies::external-local",
    "policies::policies-change",
    "refused::no-endpoints",
    "restart::changes-while-away",
    "weights::changes",
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(4));
    match trials(arguments.list) {
        Ok(trials) => {
            let conclusion = libtest_mimic::run(&arguments, trials);
            if let Err(error) = write_results() {
                eprintln!("results cannot be written: {}", chain(&error));
                return ExitCode::FAILURE;
            }
            conclusion.exit_code()
        }
        Err(error) => {
            eprintln!("packet cases cannot be run: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn write_results() -> Result<(), RigError> {
    let Some(directory) = env::var_os("SWITCHYARD_RESULTS") else { return Ok(()) };
    let results = std::mem::take(&mut *RESULTS.lock().unwrap_or_else(PoisonError::into_inner));
    for (backend, cases) in results {
        let program = match backend::is_kube_proxy(backend) {
            true => kube_proxy::find()?.unwrap_or_default(),
            false => binary::find()?,
        };
        Results::add(Path::new(&directory), backend, &program, cases)?;
    }
    Ok(())
}

fn trials(only_listed: bool) -> Result<Vec<Trial>, RigError> {
    let backends = backend::selected_and_references()?;
    let binary = match only_listed {
        true => PathBuf::new(),
        false => {
            capability::can_build_namespaces()?;
            // What a backend needs is fetched once, not tried again by each case.
            for backend in &backends {
                let _ = backend::not_runnable(backend);
            }
            binary::find()?
        }
    };
    let release = kube_proxy::release()?.unwrap_or_default();
    let wanted = env::var(CASES).unwrap_or_default();
    let by_json = wanted.trim().is_empty() && !backend::are_chosen();
    let mut trials = Vec::new();
    for file in case_files()? {
        let subject = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for case in Case::load(&file)? {
            let case = Arc::new(case);
            for backend in &backends {
                let name = format!("{backend}::{subject}::{}", case.name);
                let is_left_out = by_json && *backend == BY_JSON && !is_case_by_json(&name);
                if is_wanted(&name, &wanted) && !is_left_out {
                    trials.push(trial(name, Arc::clone(&case), backend, release, binary.clone()));
                }
            }
        }
    }
    let is_met = |part: &&str| trials.iter().any(|trial| trial.name().contains(part));
    let mut parts = wanted.split_whitespace().chain(CASES_BY_JSON.into_iter().filter(|_| by_json));
    match parts.find(|part| !is_met(part)) {
        None => Ok(trials),
        Some(part) => {
            let message = format!("no name contains {part:?}, which {CASES} or a list has");
            Err(RigError::Setup(message))
        }
    }
}

/// Whether the name contains one of these parts, of which there may be none.
fn is_wanted(name: &str, parts: &str) -> bool {
    parts.trim().is_empty() || parts.split_whitespace().any(|part| name.contains(part))
}

/// Whether a case is among those that run by JSON.
fn is_case_by_json(name: &str) -> bool {
    CASES_BY_JSON.iter().any(|case| name.ends_with(case))
}

fn trial(
    name: String,
    case: Arc<Case>,
    backend: &'static str,
    release: Release,
    binary: PathBuf,
) -> Trial {
    let differs = case.differs(backend, release).map(str::to_owned);
    let test = name.clone();
    let of_case = name.split_once("::").map_or("", |(_, case)| case).to_owned();
    let record = move |outcome| {
        let case = of_case.clone();
        let mut results = RESULTS.lock().unwrap_or_else(PoisonError::into_inner);
        results.entry(backend).or_default().insert(case, outcome);
    };
    Trial::ignorable_test(name, move || {
        if let Some(reason) = case.not_for(backend) {
            record(Outcome::DoesNotApply);
            return Ok(Completion::ignored_with(format!("not with {backend}: {reason}")));
        }
        if let Some(reason) = case.not_runnable().or_else(|| backend::not_runnable(backend)) {
            test_netns::skipped_test(&test, reason);
            record(Outcome::NotRun);
            return Ok(Completion::ignored_with(format!("not runnable: {reason}")));
        }
        let result = run_case(&case, backend, &binary);
        let is_of_timing = differs.as_ref().is_some_and(|why| why.starts_with(SOMETIMES));
        let outcome = match (&result, &differs) {
            (Ok(()), None) => Outcome::Passes,
            (Err(Failure::Proxy(_)), Some(_)) => Outcome::Differs,
            (Ok(()), Some(_)) if is_of_timing => Outcome::Differs,
            _ => Outcome::Fails,
        };
        record(outcome);
        match (result, differs) {
            (Ok(()), None) => Ok(Completion::Completed),
            _ if outcome != Outcome::Fails => Ok(Completion::Completed),
            (Err(failure), _) => Err(Failed::from(failure.report())),
            // What the documentation claims must be true.
            (Ok(()), Some(difference)) => Err(format!(
                "kube-proxy behaves as the case expects, which names this difference: {difference}"
            )
            .into()),
        }
    })
}

fn case_files() -> Result<Vec<PathBuf>, RigError> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    let failed = || RigError::io(format!("read {}", directory.display()));
    let mut files: Vec<PathBuf> = fs::read_dir(&directory)
        .map_err(failed())?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(failed())?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    Ok(files)
}
