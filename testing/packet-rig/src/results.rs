//! Results of the packet cases, in a file for each backend.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde::{Deserialize, Serialize};

use crate::{
    backend::{BACKENDS, REFERENCES},
    error::{Result, RigError},
    subject::Subject,
    suite::Found,
};

/// The result of a case with a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The backend does what the case expects.
    Passes,
    /// The backend does otherwise, as the case states.
    Differs,
    /// The backend cannot satisfy the case, as the case states.
    DoesNotApply,
    /// The machine cannot run the case.
    NotRun,
    /// The backend does otherwise.
    Fails,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Results {
    /// The proxy and its version.
    pub proxy: String,
    /// The day of the last run.
    pub date: String,
    /// The version of the kernel.
    pub kernel: String,
    /// The versions of the programs of nftables and iptables.
    pub programs: String,
    /// The command line, of a proxy that is not Switchyard.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// The result of each case.
    pub cases: BTreeMap<String, Outcome>,
    /// The sentences of the cases that failed: what the proxy did otherwise.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, String>,
}

impl Results {
    /// Reads the results of a backend; `None` if there is no file.
    ///
    /// # Errors
    /// If the file cannot be understood.
    pub fn read(directory: &Path, backend: &str) -> Result<Option<Self>> {
        let file = file(directory, backend);
        let Ok(text) = fs::read_to_string(&file) else { return Ok(None) };
        let results = serde_json::from_str(&text);
        results.map(Some).map_err(|error| setup(format!("{}: {error}", file.display())))
    }

    /// Reads the results of all proxies: of our backends, of kube-proxy's modes, and of others by
    /// name.
    ///
    /// # Errors
    /// If the directory or a file cannot be read.
    pub fn all(directory: &Path) -> Result<Vec<(String, Self)>> {
        let failed = || RigError::io(format!("read {}", directory.display()));
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(directory).map_err(failed())? {
            let path = entry.map_err(failed())?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
            }
        }
        let known = BACKENDS.into_iter().chain(REFERENCES).map(str::to_owned);
        let mut order: Vec<String> = known.filter(|name| names.remove(name)).collect();
        order.extend(names);
        let read =
            |name: String| Ok((name.clone(), Self::read(directory, &name)?.unwrap_or_default()));
        order.into_iter().map(read).collect()
    }

    /// Adds the results of a run on this machine to those in the file.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn add(directory: &Path, subject: &Subject, found: Found) -> Result<()> {
        let mut all = Self::read(directory, &subject.name)?.unwrap_or_default();
        all.proxy = version(&subject.binary);
        all.command = subject.command.as_ref().map(ToString::to_string).unwrap_or_default();
        all.date = first_line(Command::new("date").args(["-u", "+%F"]));
        all.kernel = first_line(Command::new("uname").arg("-r"));
        let versions =
            ["nft", "iptables"].map(|name| first_line(Command::new(name).arg("--version")));
        all.programs = versions.join(", ");
        all.failures.retain(|case, _| !found.outcomes.contains_key(case));
        all.failures.extend(found.failures);
        all.cases.extend(found.outcomes);
        let text = serde_json::to_string_pretty(&all).map_err(|error| setup(error.to_string()))?;
        fs::create_dir_all(directory).map_err(RigError::io("make a directory for results"))?;
        fs::write(file(directory, &subject.name), text + "\n")
            .map_err(RigError::io("write results"))
    }
}

/// The first line of a program's `--version`; nothing if it cannot be run.
pub fn version(program: &Path) -> String {
    first_line(Command::new(program).arg("--version"))
}

fn file(directory: &Path, backend: &str) -> PathBuf {
    directory.join(format!("{backend}.json"))
}

fn setup(message: String) -> RigError {
    RigError::Setup(message)
}

/// Returns the first line that a program prints; nothing if it cannot be run.
fn first_line(command: &mut Command) -> String {
    let printed = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&printed).lines().next().unwrap_or_default().trim().to_owned()
}
