//! Results of the packet cases, in a file for each backend.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde::{Deserialize, Serialize};

use crate::error::{Result, RigError};

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

/// The results of a backend.
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
    /// The result of each case.
    pub cases: BTreeMap<String, Outcome>,
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

    /// Adds the results of a run of `program` on this machine to those in the file.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn add(
        directory: &Path,
        backend: &str,
        program: &Path,
        cases: BTreeMap<String, Outcome>,
    ) -> Result<()> {
        let mut all = Self::read(directory, backend)?.unwrap_or_default();
        all.proxy = version(program);
        all.date = first_line(Command::new("date").args(["-u", "+%F"]));
        all.kernel = first_line(Command::new("uname").arg("-r"));
        let versions =
            ["nft", "iptables"].map(|name| first_line(Command::new(name).arg("--version")));
        all.programs = versions.join(", ");
        all.cases.extend(cases);
        let text = serde_json::to_string_pretty(&all).map_err(|error| setup(error.to_string()))?;
        fs::create_dir_all(directory).map_err(RigError::io("make a directory for results"))?;
        fs::write(file(directory, backend), text + "\n").map_err(RigError::io("write results"))
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
