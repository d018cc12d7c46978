//! The packet cases of `cases/*.yaml`, each as a test of each proxy.
//!
//! Those that name a difference of a proxy must fail with it. A case that this machine cannot run
//! is reported as ignored, with the reason.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use libtest_mimic::{Arguments, Completion, Conclusion, Failed, Trial};

use crate::{
    backend, capability,
    case::Case,
    error::{Result, RigError},
    kube_proxy::Release,
    results::{self, Outcome, Results},
    run::{Failure, run_case},
    subject::Subject,
};

/// The files of cases in a list: their names and contents.
macro_rules! files {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../cases/", $name, ".yaml")))),*]
    };
}

/// The files of cases, by their names without `.yaml`.
pub const FILES: [(&str, &str); 17] = files![
    "addresses" "affinity" "changes" "clusterip" "conntrack" "detect-local" "endpoints" "health"
    "lb-algorithm" "loadbalancer" "localhost" "mark" "nodeport" "policies" "refused" "restart"
    "weights"
];

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

/// All cases, by their names: that of the file and its own.
///
/// # Errors
///
/// If a case is malformed.
pub fn cases() -> Result<BTreeMap<String, Case>> {
    let mut cases = BTreeMap::new();
    for (subject, text) in FILES {
        let of_file = Case::parse(subject, text)?;
        cases.extend(of_file.into_iter().map(|case| (format!("{subject}::{}", case.name), case)));
    }
    Ok(cases)
}

/// The cases' outcomes with a proxy.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The outcome of each case.
    pub outcomes: BTreeMap<String, Outcome>,
    /// The sentences of the cases that failed: what the proxy did otherwise.
    pub failures: BTreeMap<String, String>,
}

/// The cases with a list of proxies.
#[derive(Debug)]
pub struct Suite {
    subjects: Vec<Arc<Subject>>,
    trials: Vec<Trial>,
    found: Arc<Mutex<BTreeMap<String, Found>>>,
}

impl Suite {
    /// The cases whose names contain one of the parts, which are separated by blanks; without parts
    /// all, of which a selection by JSON unless `is_all` is set.
    ///
    /// # Errors
    ///
    /// If no name contains one of the parts, or if namespaces cannot be made here.
    pub fn new(subjects: Vec<Subject>, wanted: &str, is_all: bool) -> Result<Self> {
        let subjects: Vec<Arc<Subject>> = subjects.into_iter().map(Arc::new).collect();
        let by_json = wanted.trim().is_empty() && !is_all;
        let found = Arc::default();
        let mut trials = Vec::new();
        for (case, plan) in cases()? {
            let plan = Arc::new(plan);
            for subject in &subjects {
                let name = format!("{}::{case}", subject.name);
                let is_left_out = by_json && subject.name == BY_JSON && !is_case_by_json(&name);
                if is_wanted(&name, wanted) && !is_left_out {
                    trials.push(trial(name, &case, &plan, subject, &found));
                }
            }
        }
        let is_met = |part: &&str| trials.iter().any(|trial| trial.name().contains(part));
        let listed = CASES_BY_JSON.into_iter().filter(|_| by_json);
        let mut parts = wanted.split_whitespace().chain(listed);
        match parts.find(|part| !is_met(part)) {
            None => Ok(Self { subjects, trials, found }),
            Some(part) => Err(RigError::Setup(format!(
                "no name of a case contains {part:?}, which is asked for"
            ))),
        }
    }

    /// Runs the cases, four at a time unless another number is asked for, and writes the results to
    /// the directory, if one is given.
    ///
    /// # Errors
    ///
    /// If the results cannot be written.
    pub fn run(self, mut arguments: Arguments, directory: Option<&Path>) -> Result<Conclusion> {
        if !arguments.list {
            capability::can_build_namespaces()?;
            // What a backend needs is fetched once, not tried again by each case.
            for subject in &self.subjects {
                let _ = backend::not_runnable(&subject.name);
            }
        }
        arguments.test_threads = arguments.test_threads.or(Some(4));
        let conclusion = libtest_mimic::run(&arguments, self.trials);
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        for subject in &self.subjects {
            if let (Some(directory), Some(found)) = (directory, found.remove(&subject.name)) {
                Results::add(directory, subject, found)?;
            }
        }
        Ok(conclusion)
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
    of_case: &str,
    case: &Arc<Case>,
    subject: &Arc<Subject>,
    found: &Arc<Mutex<BTreeMap<String, Found>>>,
) -> Trial {
    let (case, subject, found) = (Arc::clone(case), Arc::clone(subject), Arc::clone(found));
    let (test, of_case) = (name.clone(), of_case.to_owned());
    Trial::ignorable_test(name, move || {
        let record = |outcome, failure: Option<&Failure>| {
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            let found = found.entry(subject.name.clone()).or_default();
            found.outcomes.insert(of_case.clone(), outcome);
            let sentence = failure.map(|failure| failure.sentence().to_owned());
            found.failures.extend(sentence.map(|sentence| (of_case.clone(), sentence)));
        };
        if let Some(reason) = subject.not_for(&case) {
            record(Outcome::DoesNotApply, None);
            return Ok(Completion::ignored_with(format!("not with {}: {reason}", subject.name)));
        }
        if let Some(reason) = case.not_runnable().or_else(|| backend::not_runnable(&subject.name)) {
            test_netns::skipped_test(&test, reason);
            record(Outcome::NotRun, None);
            return Ok(Completion::ignored_with(format!("not runnable: {reason}")));
        }
        let release = match backend::is_kube_proxy(&subject.name) {
            true => Release::of(&results::version(&subject.binary)),
            false => Release::default(),
        };
        let differs = case.differs(&subject.name, release);
        let result = run_case(&case, &subject);
        let is_of_timing = differs.is_some_and(|why| why.starts_with(SOMETIMES));
        let outcome = match (&result, differs) {
            (Ok(()), None) => Outcome::Passes,
            (Err(Failure::Proxy(_)), Some(_)) => Outcome::Differs,
            (Ok(()), Some(_)) if is_of_timing => Outcome::Differs,
            (Err(Failure::Rig(_)), _) => Outcome::NotRun,
            _ => Outcome::Fails,
        };
        record(outcome, result.as_ref().err().filter(|_| outcome == Outcome::Fails));
        match (result, differs) {
            (Ok(()), None) => Ok(Completion::Completed),
            _ if outcome == Outcome::Differs => Ok(Completion::Completed),
            (Err(failure), _) => Err(Failed::from(failure.report())),
            // What the documentation claims must be true.
            (Ok(()), Some(difference)) => Err(format!(
                "kube-proxy behaves as the case expects, which names this difference: {difference}"
            )
            .into()),
        }
    })
}
