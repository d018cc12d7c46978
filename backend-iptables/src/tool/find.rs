//! Which programs there are, and which flavour the host uses.
//!
//! A node may have both flavours installed, and only one of them in use: rules of both at once
//! would each do their part, in an order that nobody decided. The kubelet, where there is one, has
//! left a chain behind in the flavour that the host's own `iptables` has; else the flavour with
//! more rules counts, and nft if there are none.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use proxy_core::model::{IpFamily, PerFamily};

use super::{Flavour, Programs, dump::Dump, run};
use crate::layout::Table;

/// The first version whose `iptables-restore` waits for the lock, and that knows `--random-fully`.
const OLDEST: (u32, u32, u32) = (1, 6, 2);
/// Chains of the kubelet, in the mangle table, by which it shows which flavour it uses.
const HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];

/// The programs of both flavours, as far as there are any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Installed {
    found: Vec<Programs>,
    /// Programs that are there and cannot be used, and why.
    unusable: Vec<String>,
}

impl Installed {
    /// Looks in `directory`, or in the directories of `PATH`.
    pub(crate) fn look(directory: Option<&Path>) -> Self {
        let directories: Vec<PathBuf> = match directory {
            Some(directory) => vec![directory.to_owned()],
            None => env::var_os("PATH").iter().flat_map(env::split_paths).collect(),
        };
        let mut installed = Self::default();
        for family in IpFamily::ALL {
            let base = match family {
                IpFamily::V4 => "iptables",
                IpFamily::V6 => "ip6tables",
            };
            for flavour in Flavour::ALL {
                installed.add(&directories, &format!("{base}-{flavour}"), family);
            }
            // Distributions with one flavour only need not say which in the names.
            installed.add(&directories, base, family);
        }
        installed
    }

    fn add(&mut self, directories: &[PathBuf], name: &str, family: IpFamily) {
        let find = |name: String| directories.iter().map(|d| d.join(&name)).find(|p| p.exists());
        let (Some(main), Some(save), Some(restore)) =
            (find(name.to_owned()), find(format!("{name}-save")), find(format!("{name}-restore")))
        else {
            return;
        };
        let version = match run::version(&main) {
            Ok(version) => version,
            Err(error) => return self.unusable.push(error.to_string()),
        };
        let Some((number, flavour)) = parse_version(&version) else {
            return self.unusable.push(format!("{name} says `{}` of its version", version.trim()));
        };
        if number < OLDEST {
            let (major, minor, patch) = OLDEST;
            return self.unusable.push(format!(
                "{} is too old, {major}.{minor}.{patch} is the oldest that will do",
                version.trim()
            ));
        }
        if self.of(flavour, family).is_none() {
            self.found.push(Programs { flavour, family, main, save, restore });
        }
    }

    /// The programs of that flavour for that family.
    pub(crate) fn of(&self, flavour: Flavour, family: IpFamily) -> Option<&Programs> {
        self.found.iter().find(|p| p.flavour == flavour && p.family == family)
    }

    /// Whether all families can be programmed with that flavour.
    fn has(&self, flavour: Flavour, families: PerFamily<bool>) -> bool {
        IpFamily::ALL
            .into_iter()
            .filter(|family| *families.of(*family))
            .all(|family| self.of(flavour, family).is_some())
    }

    /// The flavour to use, and the families that can be programmed with it: all, or else one.
    pub(crate) fn choose_for_most(
        &self,
        wanted: Option<Flavour>,
        families: PerFamily<bool>,
    ) -> Result<(Flavour, PerFamily<bool>), String> {
        let all = self.choose(wanted, families).map(|flavour| (flavour, families));
        let one = |family| {
            let alone = PerFamily::from_fn(|other| other == family && *families.of(family));
            let flavour = families.of(family).then(|| self.choose(wanted, alone).ok())??;
            Some((flavour, alone))
        };
        all.or_else(|missing| IpFamily::ALL.into_iter().find_map(one).ok_or(missing))
    }

    /// The flavour to use: the one that is asked for, else the host's.
    pub(crate) fn choose(
        &self,
        wanted: Option<Flavour>,
        families: PerFamily<bool>,
    ) -> Result<Flavour, String> {
        let usable: Vec<Flavour> =
            Flavour::ALL.into_iter().filter(|flavour| self.has(*flavour, families)).collect();
        match (wanted, usable.as_slice()) {
            (Some(wanted), usable) if usable.contains(&wanted) => Ok(wanted),
            (wanted, []) | (wanted @ Some(_), _) => Err(self.missing(wanted, families)),
            (None, [only]) => Ok(*only),
            (None, _) => Ok(self.in_use(families)),
        }
    }

    /// What is missing, in a line.
    fn missing(&self, wanted: Option<Flavour>, families: PerFamily<bool>) -> String {
        if let Some(why) = self.unusable.first() {
            return why.clone();
        }
        let flavour =
            wanted.map(|flavour| format!(" of the {flavour} flavour")).unwrap_or_default();
        let six =
            if families.v6 { ", ip6tables, ip6tables-save and ip6tables-restore" } else { "" };
        format!("iptables, iptables-save and iptables-restore{six}{flavour} are not installed")
    }

    /// The flavour that the host uses.
    fn in_use(&self, families: PerFamily<bool>) -> Flavour {
        let dumps = |flavour| self.dumps(flavour, families);
        let (nft, legacy) = (dumps(Flavour::Nft), dumps(Flavour::Legacy));
        let is_hinted = |dumps: &[Dump]| {
            dumps.iter().any(|dump| HINTS.iter().any(|hint| dump.has_chain(Table::Mangle, hint)))
        };
        let rules = |dumps: &[Dump]| dumps.iter().map(Dump::rule_count).sum::<usize>();
        match (is_hinted(&nft), is_hinted(&legacy)) {
            (true, _) => Flavour::Nft,
            (false, true) => Flavour::Legacy,
            (false, false) if rules(&legacy) > rules(&nft) => Flavour::Legacy,
            (false, false) => Flavour::Nft,
        }
    }

    fn dumps(&self, flavour: Flavour, families: PerFamily<bool>) -> Vec<Dump> {
        IpFamily::ALL
            .into_iter()
            .filter(|family| *families.of(*family) && may_have_rules(flavour, *family))
            .filter_map(|family| self.of(flavour, family))
            // What cannot be read is not in use.
            .filter_map(|programs| run::save(programs).ok())
            .collect()
    }
}

/// Whether there can be rules of that flavour. To look for them with the legacy programs would make
/// the tables, which then slow every packet down.
pub(crate) fn may_have_rules(flavour: Flavour, family: IpFamily) -> bool {
    let list = match (flavour, family) {
        (Flavour::Nft, _) => return true,
        (Flavour::Legacy, IpFamily::V4) => "/proc/thread-self/net/ip_tables_names",
        (Flavour::Legacy, IpFamily::V6) => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(list).is_ok_and(|tables| !tables.trim().is_empty())
}

/// Reads `iptables v1.8.9 (nf_tables)`. Versions before 1.8 knew one flavour only.
fn parse_version(text: &str) -> Option<((u32, u32, u32), Flavour)> {
    let mut words = text.split_whitespace().skip(1);
    let mut numbers = words.next()?.strip_prefix('v')?.split('.').map(|n| n.parse().ok());
    let number = (numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0));
    let flavour = match words.next() {
        Some("(nf_tables)") => Flavour::Nft,
        _ => Flavour::Legacy,
    };
    Some((number, flavour))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn versions_say_their_flavour() {
        let read = parse_version;
        assert_eq!(read("iptables v1.8.9 (nf_tables)\n"), Some(((1, 8, 9), Flavour::Nft)));
        assert_eq!(read("ip6tables v1.8.9 (legacy)"), Some(((1, 8, 9), Flavour::Legacy)));
        assert_eq!(read("iptables v1.4.21"), Some(((1, 4, 21), Flavour::Legacy)));
        assert_eq!(read("busybox"), None);
    }

    /// A directory with programs that answer `--version`.
    fn programs(names: &[&str], version: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for name in names {
            for suffix in ["", "-save", "-restore"] {
                let path = directory.path().join(format!("{name}{suffix}"));
                fs::write(&path, format!("#!/bin/sh\necho '{version}'\n")).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
        directory
    }

    const V4: PerFamily<bool> = PerFamily { v4: true, v6: false };
    const BOTH: PerFamily<bool> = PerFamily { v4: true, v6: true };

    #[test]
    fn what_is_missing_is_said() {
        let choose = |directory: &tempfile::TempDir, wanted, families| {
            Installed::look(Some(directory.path())).choose(wanted, families)
        };
        let nothing = tempfile::tempdir().unwrap();
        assert!(choose(&nothing, None, BOTH).unwrap_err().contains("ip6tables-restore are not"));

        let old = programs(&["iptables"], "iptables v1.4.21");
        assert_eq!(
            choose(&old, None, V4).unwrap_err(),
            "iptables v1.4.21 is too old, 1.6.2 is the oldest that will do"
        );

        // One flavour, without its name.
        let one = programs(&["iptables"], "iptables v1.8.10 (nf_tables)");
        assert_eq!(choose(&one, None, V4), Ok(Flavour::Nft));
        assert!(choose(&one, None, BOTH).is_err(), "there is nothing for IPv6");
        let most =
            |wanted, families| Installed::look(Some(one.path())).choose_for_most(wanted, families);
        assert_eq!(most(None, BOTH), Ok((Flavour::Nft, V4)), "but for IPv4");
        assert!(most(Some(Flavour::Legacy), BOTH).is_err());
        assert!(most(None, PerFamily { v4: false, v6: true }).is_err());
        let error = choose(&one, Some(Flavour::Legacy), V4).unwrap_err();
        assert!(error.contains("of the legacy flavour are not installed"), "{error}");
    }
}
