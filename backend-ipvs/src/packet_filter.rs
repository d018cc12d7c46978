//! The choice of the packet filter, whose rules IPVS needs besides virtual servers.

use std::fmt;

use switchyard_core::{error::ErrorChain, model::PerFamily};
use switchyard_xtables::{InstalledPrograms, ProgramOptions, Tools};

/// What programs the rules beside the virtual servers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a process has one or two")]
pub(crate) enum PacketFilter {
    /// iptables, with IP sets, as in kube-proxy's ipvs mode.
    Iptables(Tools),
    /// An nft table of our own.
    Nftables {
        /// Why iptables cannot be used.
        reason: String,
    },
}

impl PacketFilter {
    /// The families that can be programmed, of those that are configured.
    pub(crate) fn families(&self, configured: PerFamily<bool>) -> PerFamily<bool> {
        match self {
            Self::Iptables(tools) => tools.families(),
            Self::Nftables { .. } => configured,
        }
    }
}

impl fmt::Display for PacketFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iptables(tools) => write!(f, "ipvs uses iptables-{}", tools.flavour()),
            Self::Nftables { reason } => {
                write!(
                    f,
                    "ipvs uses an nft table of its own, since iptables cannot be used: {reason}"
                )
            }
        }
    }
}

/// Chooses the packet filter: iptables of the flavour that the host uses, as iptables mode does, or
/// else an nft table. Runs programs, so the value is best kept. Logs the choice.
pub(crate) fn packet_filter(options: &ProgramOptions, families: PerFamily<bool>) -> PacketFilter {
    let nftables = |reason| PacketFilter::Nftables { reason };
    let filter = match InstalledPrograms::find(options).choose(None, families) {
        Ok(tools) => match tools.usable() {
            Ok(tools) => PacketFilter::Iptables(tools),
            Err(error) => nftables(ErrorChain(&error).to_string()),
        },
        Err(missing) => nftables(missing.reason),
    };
    tracing::info!("{filter}");
    filter
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    const V4: PerFamily<bool> = PerFamily { v4: true, v6: false };
    const BOTH: PerFamily<bool> = PerFamily { v4: true, v6: true };

    /// A directory with programs of iptables for IPv4, which answer `--version`, and list a chain as
    /// `list` does.
    fn programs(list: &str) -> (tempfile::TempDir, ProgramOptions) {
        let directory = tempfile::tempdir().unwrap();
        for suffix in ["", "-save", "-restore"] {
            let path = directory.path().join(format!("iptables{suffix}"));
            let version = "iptables v1.8.9 (nf_tables)";
            let script =
                format!("#!/bin/sh\n[ \"$1\" != --version ] || exec echo '{version}'\n{list}\n");
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let options = ProgramOptions {
            directory: Some(directory.path().to_owned()),
            ..ProgramOptions::default()
        };
        (directory, options)
    }

    #[test]
    fn iptables_is_used_where_it_works() {
        let (_directory, options) = programs("exit 0");
        let filter = packet_filter(&options, BOTH);
        assert_eq!(filter.to_string(), "ipvs uses iptables-nft");
        assert_eq!(filter.families(BOTH), V4, "there are no programs for IPv6");
    }

    #[test]
    fn an_nft_table_takes_the_place_of_iptables_that_is_missing_or_fails() {
        let nowhere = tempfile::tempdir().unwrap();
        let directory = Some(nowhere.path().to_owned());
        let filter = packet_filter(&ProgramOptions { directory, ..Default::default() }, BOTH);
        assert_eq!(
            filter.to_string(),
            "ipvs uses an nft table of its own, since iptables cannot be used: iptables, \
             iptables-save and iptables-restore, ip6tables, ip6tables-save and ip6tables-restore \
             are not installed"
        );
        assert_eq!((filter.families(BOTH), filter.families(V4)), (BOTH, V4));

        let (_directory, options) = programs("echo 'Table does not exist' >&2; exit 3");
        let PacketFilter::Nftables { reason } = packet_filter(&options, V4) else { panic!() };
        assert!(reason.ends_with("Table does not exist"), "{reason}");
    }
}
