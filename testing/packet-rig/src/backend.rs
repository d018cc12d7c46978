//! The backends that tests run with.

use std::{env, ffi::OsString};

use crate::error::{Result, RigError};

/// The backends, by their `--proxy-mode`.
pub const BACKENDS: [&str; 4] = ["nftables", "iptables", "ipvs", "userspace"];

/// The backends that exist and that every node of the tests can run.
const BUILT: [&str; 2] = ["nftables", "iptables"];

/// The backends to test with: the comma-separated list in the environment's `SWITCHYARD_BACKENDS`,
/// else all backends that are built.
///
/// # Errors
///
/// If the variable names no backend, or an unknown one.
pub fn selected() -> Result<Vec<&'static str>> {
    match env::var_os("SWITCHYARD_BACKENDS") {
        None => Ok(BUILT.to_vec()),
        Some(list) => parse(&list),
    }
}

fn parse(list: &OsString) -> Result<Vec<&'static str>> {
    let list = list.to_string_lossy();
    let find = |word: &str| {
        let known = BACKENDS.into_iter().find(|name| *name == word.trim());
        known.ok_or_else(|| RigError::UnknownBackend { name: word.to_owned() })
    };
    list.split(',').map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_known_backends() {
        let parse = |list: &str| parse(&list.into());
        assert_eq!(parse("iptables").unwrap(), ["iptables"]);
        assert_eq!(parse("iptables, nftables").unwrap(), ["iptables", "nftables"]);
        for list in ["", "nftables,", "nft"] {
            assert!(matches!(parse(list), Err(RigError::UnknownBackend { .. })), "{list:?}");
        }
    }
}
