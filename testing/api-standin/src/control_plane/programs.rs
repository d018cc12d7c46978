//! The programs that the environment names.

use std::{env, path::PathBuf};

/// The variable that names the program `kube-apiserver`.
const API_SERVER: &str = "KUBE_APISERVER";

/// The variable that names the program `etcd`.
const ETCD: &str = "ETCD";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// `kube-apiserver`
    pub api_server: PathBuf,
    pub etcd: PathBuf,
}

impl Programs {
    /// The programs that the environment names; `None` if it names none.
    pub fn find() -> Option<Self> {
        match (file(API_SERVER), file(ETCD)) {
            (None, None) => None,
            (Some(api_server), Some(etcd)) => Some(Self { api_server, etcd }),
            _ => panic!("of {API_SERVER} and {ETCD} only one is set: both programs are needed"),
        }
    }
}

/// The program that a variable names. Servers run in their own directory, so the path is absolute.
fn file(variable: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env::var_os(variable)?);
    assert!(path.is_file(), "{variable}: no file {}", path.display());
    Some(path.canonicalize().unwrap())
}
