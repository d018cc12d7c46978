//! The programs that the environment names.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::error::{ControlPlaneError, Result};

/// The variable that names the program `kube-apiserver`.
pub const API_SERVER: &str = "KUBE_APISERVER";

/// The variable that names the program `etcd`.
pub const ETCD: &str = "ETCD";

/// The programs of a control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// `kube-apiserver`
    pub api_server: PathBuf,
    /// `etcd`
    pub etcd: PathBuf,
}

impl Programs {
    /// The programs that the environment names; `None` if it names none.
    ///
    /// # Errors
    ///
    /// If only one of the variables is set, or if one names no file.
    pub fn find() -> Result<Option<Self>> {
        Self::named(|variable| env::var_os(variable))
    }

    fn named(value: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>> {
        match (value(API_SERVER), value(ETCD)) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(ControlPlaneError::Half { set: API_SERVER, missing: ETCD }),
            (None, Some(_)) => Err(ControlPlaneError::Half { set: ETCD, missing: API_SERVER }),
            (Some(api_server), Some(etcd)) => Ok(Some(Self {
                api_server: file(API_SERVER, Path::new(&api_server))?,
                etcd: file(ETCD, Path::new(&etcd))?,
            })),
        }
    }
}

fn file(variable: &'static str, path: &Path) -> Result<PathBuf> {
    match path.is_file() {
        // Servers run in their own directory.
        true => Ok(path.canonicalize().unwrap_or_else(|_| path.to_owned())),
        false => Err(ControlPlaneError::NoFile { variable, path: path.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(api_server: Option<&str>, etcd: Option<&str>) -> Result<Option<Programs>, String> {
        let value = |variable: &str| match variable {
            API_SERVER => api_server.map(OsString::from),
            _ => etcd.map(OsString::from),
        };
        Programs::named(value).map_err(|error| error.to_string())
    }

    #[test]
    fn both_programs_are_named_or_none() {
        assert_eq!(named(None, None), Ok(None));
        let programs = named(Some("/bin/sh"), Some("/bin/sh")).unwrap().unwrap();
        assert_eq!(programs.api_server, Path::new("/bin/sh").canonicalize().unwrap());
        for (api_server, etcd, part) in [
            (Some("/bin/sh"), None, "ETCD is not"),
            (None, Some("/bin/sh"), "KUBE_APISERVER is not"),
            (Some("/nowhere"), Some("/bin/sh"), "KUBE_APISERVER: no file /nowhere"),
            (Some("/bin/sh"), Some("/tmp"), "ETCD: no file /tmp"),
        ] {
            let error = named(api_server, etcd).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
