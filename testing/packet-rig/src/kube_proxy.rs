//! Genuine kube-proxy in the place of the proxy under test.
//!
//! Where the variable `KUBE_PROXY` names its program, the packet cases run with it as well, and the
//! swap tests take over from it and are taken over by it. It knows no manifests: a stand-in for the
//! API server, in the node's namespace, serves those of the rig.

use std::{
    env,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use crate::{
    binary,
    error::{Result, RigError},
    netns::NetNs,
    results, spawn,
};

pub const VARIABLE: &str = "KUBE_PROXY";

/// The port that the stand-in for the API server has on the node's loopback addresses.
const SERVER: &str = "127.0.0.1:6443";

/// The arguments that kube-proxy needs in a namespace, where a case has no file for it: the number
/// of connections that the kernel may track can be changed in the first namespace alone, and the
/// stand-in reads Events as JSON.
pub const ARGUMENTS: &[&str] =
    &["--conntrack-max-per-core=0", "--kube-api-content-type=application/json"];

/// The program that the environment names, if any.
///
/// # Errors
///
/// If the variable names no file.
pub fn find() -> Result<Option<PathBuf>> {
    let Some(path) = env::var_os(VARIABLE).map(PathBuf::from) else { return Ok(None) };
    match path.is_file() {
        true => Ok(Some(path)),
        false => Err(RigError::Setup(format!("{VARIABLE}: no file {}", path.display()))),
    }
}

/// The releases of kube-proxy whose differences the cases name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// Release 1.30, whose nftables mode is an alpha, and those before.
    V1_30,
    /// Release 1.36; later releases and those between are compared with its differences.
    #[default]
    V1_36,
}

impl Release {
    /// The release of a program that prints this as its version.
    pub fn of(version: &str) -> Self {
        let minor = version.split("v1.").nth(1).and_then(|rest| rest.split('.').next());
        match minor.and_then(|minor| minor.parse::<u32>().ok()) {
            Some(..=30) => Self::V1_30,
            _ => Self::V1_36,
        }
    }
}

/// The release of the program that the environment names, if any.
///
/// # Errors
///
/// As [`find`].
pub fn release() -> Result<Option<Release>> {
    Ok(find()?.map(|program| Release::of(&results::version(&program))))
}

/// A stand-in for the API server that serves a directory of manifests, and ends when it is dropped.
#[derive(Debug)]
pub struct ManifestServer {
    child: Child,
    kubeconfig: PathBuf,
}

impl ManifestServer {
    /// Starts the server in a namespace. Its kubeconfig and its log are written beside the
    /// directory.
    ///
    /// # Errors
    ///
    /// If the program is not built, or if the server does not start, e.g. since a manifest cannot
    /// be served.
    pub fn start(namespace: &NetNs, manifests: &Path) -> Result<Self> {
        let program = binary::built("api-standin")?;
        let kubeconfig = manifests.with_file_name("kubeconfig");
        let log = manifests.with_file_name("server.log");
        let file = || RigError::io(format!("open {}", log.display()));
        let mut command = namespace.command(&program);
        command.arg(&kubeconfig).args(["--listen", SERVER, "--manifests"]).arg(manifests);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(std::fs::File::create(&log).map_err(file())?);
        let start = || RigError::io(format!("run {}", program.display()));
        let child = spawn::spawn(command).map_err(start())?;
        let mut server = Self { child, kubeconfig };
        let mut line = String::new();
        if let Some(output) = server.child.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(start())?;
        }
        match line.starts_with("serving") {
            true => Ok(server),
            false => {
                let log = std::fs::read_to_string(&log).map_err(file())?;
                Err(RigError::Setup(format!("the stand-in for the API server ended: {log}")))
            }
        }
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}

impl Drop for ManifestServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The fields of a KubeProxyConfiguration that stand for [`ARGUMENTS`].
pub(crate) fn fields(kubeconfig: &Path) -> String {
    format!(
        "conntrack: {{maxPerCore: 0}}\n\
         clientConnection: {{kubeconfig: \"{}\", contentType: application/json}}\n",
        kubeconfig.display()
    )
}
