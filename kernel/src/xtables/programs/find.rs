//! The installed programs, and the flavour that the host uses.
//!
//! A node may have both flavours installed, of which only one should be used: packets pass the
//! rules of both, in an order that depends on the kernel. The kubelet leaves a chain behind in the
//! flavour of the host's own `iptables`; without that chain the flavour with more rules is taken,
//! and nft if there are no rules.

use std::{env, path::PathBuf};

use switchyard_model::{ErrorChain, IpFamily, PerFamily};

use super::{Flavour, MissingPrograms, ProgramOptions, Programs, ToolError, Version, run};
use crate::xtables::{
    Dump, LeftoverError, OwnedChains, Table, leftovers,
    legacy_table::{self, LegacyTable},
    nft_tables,
};

/// The first version whose `iptables-restore` waits for the lock, and that knows `--random-fully`.
const OLDEST: Version = Version(1, 6, 2);
/// Chains that the kubelet makes in the mangle table of the flavour that it uses.
const HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];

/// The chain by which is tested whether a table can be read. No such chain exists.
const PROBE: &str = "SWITCHYARD-PROBE";

/// The programs of both flavours and families that a node has.
#[derive(Clone, Debug, Default)]
pub struct InstalledPrograms {
    found: Vec<Programs>,
    /// Why programs that are installed cannot be used.
    unusable: Vec<String>,
}

/// The programs that a node's rules are programmed with: of one flavour, for one family or both.
/// Finding them runs several programs, so the value is best kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    flavour: Flavour,
    programs: PerFamily<Option<Programs>>,
}

impl Tools {
    /// The programs of both families on another machine, of the flavour nft.
    #[cfg(feature = "testing")]
    pub fn on(machine: &crate::xtables::testing::SharedMachine) -> Self {
        let flavour = Flavour::Nft;
        let programs = |family| Programs {
            flavour,
            family,
            version: Version(1, 8, 9),
            main: "iptables".into(),
            save: "iptables-save".into(),
            restore: "iptables-restore".into(),
            limits: Default::default(),
            lock_file: None,
            machine: Some(machine.clone()),
        };
        Self { flavour, programs: PerFamily::from_fn(|family| Some(programs(family))) }
    }

    /// The flavour of the programs.
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// Removes the owned chains of the other flavour and these families, as
    /// [`remove`](crate::xtables::remove) does those of both. Returns whether there was any.
    ///
    /// # Errors
    ///
    /// The first error, after everything else was removed.
    pub fn remove_other_flavour(
        &self,
        families: PerFamily<bool>,
        owned: &OwnedChains,
    ) -> Result<bool, LeftoverError> {
        #[cfg(feature = "testing")]
        if self.iter().any(|programs| programs.machine().is_some()) {
            return Ok(false);
        }
        leftovers::remove_of(&[self.flavour.other()], families, owned)
    }

    /// The families that have programs.
    pub fn families(&self) -> PerFamily<bool> {
        PerFamily::from_fn(|family| self.get(family).is_some())
    }

    /// The programs for a family.
    pub fn get(&self, family: IpFamily) -> Option<&Programs> {
        self.programs.get(family).as_ref()
    }

    /// The programs for each family, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = &Programs> {
        IpFamily::ALL.into_iter().filter_map(|family| self.get(family))
    }

    /// Whether the kernel has a match, such as `recent`, in all families; `None` if it cannot be
    /// asked.
    pub fn has_match(&self, name: &str) -> Option<bool> {
        let answers: Vec<_> = self.iter().map(|programs| has_match(programs, name)).collect();
        if answers.contains(&Some(false)) {
            return Some(false);
        }
        answers.iter().all(|answer| *answer == Some(true)).then_some(true)
    }

    /// Keeps the families whose tables can be read: a node may lack a family's kernel modules, or
    /// the privilege to use them. A family whose program cannot be run now, or does not end in
    /// time, is kept beside the other: syncs show what comes of it. Runs one program for each
    /// family, and a program that fails once more.
    ///
    /// # Errors
    ///
    /// The first family's, if no family's tables can be read.
    pub fn usable(mut self) -> Result<Self, ToolError> {
        let mut first = None;
        let mut is_usable = false;
        for family in IpFamily::ALL {
            let Some(programs) = self.get(family) else { continue };
            let probe = || programs.check(&["-t", "nat", "-n", "-L", PROBE]);
            let probed = match probe() {
                // It may be a program that was changing rules meanwhile.
                Err(ToolError::Failed { .. }) => probe(),
                probed => probed,
            };
            let Err(error) = probed else {
                is_usable = true;
                continue;
            };
            if matches!(error, ToolError::Locked { .. }) {
                // There are tables to lock.
                is_usable = true;
                continue;
            }
            let err = ErrorChain(&error);
            if matches!(error, ToolError::TimedOut { .. } | ToolError::Run { .. }) {
                tracing::warn!(%family, %err, "Could not ask whether iptables works for an IP family");
            } else {
                tracing::info!(%family, %err, "iptables unavailable for an IP family");
                *self.programs.get_mut(family) = None;
            }
            first.get_or_insert(error);
        }
        match first {
            Some(error) if !is_usable => Err(error),
            _ => Ok(self),
        }
    }
}

impl InstalledPrograms {
    /// Looks for the programs, and runs each found one once for its version.
    pub fn find(options: &ProgramOptions) -> Self {
        let directories: Vec<PathBuf> = match &options.directory {
            Some(directory) => vec![directory.clone()],
            None => env::var_os("PATH").iter().flat_map(env::split_paths).collect(),
        };
        let mut installed = Self::default();
        for family in IpFamily::ALL {
            let base = match family {
                IpFamily::V4 => "iptables",
                IpFamily::V6 => "ip6tables",
            };
            for flavour in Flavour::ALL {
                installed.add(options, &directories, &format!("{base}-{flavour}"), family);
            }
            // Distributions with one flavour only may leave the flavour out of the names.
            installed.add(options, &directories, base, family);
        }
        installed
    }

    fn add(
        &mut self,
        options: &ProgramOptions,
        directories: &[PathBuf],
        name: &str,
        family: IpFamily,
    ) {
        let find = |name: String| directories.iter().map(|d| d.join(&name)).find(|p| p.exists());
        let (Some(main), Some(save), Some(restore)) =
            (find(name.to_owned()), find(format!("{name}-save")), find(format!("{name}-restore")))
        else {
            return;
        };
        let text = match run::version(&main, options) {
            Ok(text) => text,
            Err(error) => return self.unusable.push(ErrorChain(&error).to_string()),
        };
        let Some((version, flavour)) = parse_version(&text) else {
            let text = text.trim();
            return self.unusable.push(format!("{name} reports the unknown version `{text}`"));
        };
        if version < OLDEST {
            return self
                .unusable
                .push(format!("{} is too old, {OLDEST} is the oldest that will do", text.trim()));
        }
        if self.get(flavour, family).is_none() {
            let (limits, lock_file) = (options.limits, options.lock_file.clone());
            self.found.push(Programs {
                flavour,
                family,
                version,
                main,
                save,
                restore,
                limits,
                lock_file,
                #[cfg(feature = "testing")]
                machine: None,
            });
        }
    }

    /// The programs of a flavour for a family.
    pub fn get(&self, flavour: Flavour, family: IpFamily) -> Option<&Programs> {
        self.found.iter().find(|p| p.flavour == flavour && p.family == family)
    }

    /// Whether all families can be programmed with that flavour.
    fn has(&self, flavour: Flavour, families: PerFamily<bool>) -> bool {
        IpFamily::ALL
            .into_iter()
            .filter(|family| *families.get(*family))
            .all(|family| self.get(flavour, family).is_some())
    }

    /// Chooses the programs to use for the families: of the flavour `wanted`, or else of the
    /// flavour that the host uses. If one family has no programs of that flavour, the other alone
    /// is chosen. With both flavours installed, this reads their tables.
    ///
    /// # Errors
    ///
    /// If the programs of both families are missing.
    pub fn choose(
        &self,
        wanted: Option<Flavour>,
        families: PerFamily<bool>,
    ) -> Result<Tools, MissingPrograms> {
        let all = self.choose_flavour(wanted, families).map(|flavour| (flavour, families));
        let one = |family| {
            let alone = PerFamily::from_fn(|other| other == family && *families.get(family));
            let flavour =
                families.get(family).then(|| self.choose_flavour(wanted, alone).ok())??;
            Some((flavour, alone))
        };
        let (flavour, families) = all
            .or_else(|missing| {
                let one = IpFamily::ALL.into_iter().find_map(one).ok_or(missing.clone())?;
                tracing::warn!(err = missing, "iptables is used for one IP family alone");
                Ok(one)
            })
            .map_err(|reason| MissingPrograms { reason })?;
        let programs = |family| match families.get(family) {
            true => self.get(flavour, family).cloned(),
            false => None,
        };
        Ok(Tools { flavour, programs: PerFamily::from_fn(programs) })
    }

    /// Chooses a flavour that all of the families have.
    fn choose_flavour(
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

    /// Describes in one line what is missing.
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
            .filter(|family| *families.get(*family) && may_have_rules(flavour, *family))
            .filter_map(|family| self.get(flavour, family))
            // Tables that cannot be read are not in use.
            .filter_map(|programs| programs.save().ok())
            .collect()
    }
}

fn has_match(programs: &Programs, name: &str) -> Option<bool> {
    #[cfg(feature = "testing")]
    if programs.machine().is_some() {
        return None;
    }
    let family = programs.family;
    match programs.flavour {
        Flavour::Legacy => LegacyTable::open(family, Table::Nat).ok()?.has_match(name).ok(),
        Flavour::Nft => nft_tables::has_match(&mut nft_tables::open().ok()?, family, name).ok(),
    }
}

/// Whether there can be rules of a flavour. Reading them with the legacy programs would make the
/// tables, which then slow every packet down.
fn may_have_rules(flavour: Flavour, family: IpFamily) -> bool {
    match flavour {
        Flavour::Nft => true,
        Flavour::Legacy => {
            legacy_table::table_names(family).is_ok_and(|tables| !tables.trim().is_empty())
        }
    }
}

/// Parses `iptables v1.8.9 (nf_tables)`. Versions before 1.8 knew one flavour only.
fn parse_version(text: &str) -> Option<(Version, Flavour)> {
    let mut words = text.split_whitespace().skip(1);
    let mut numbers = words.next()?.strip_prefix('v')?.split('.').map(|n| n.parse().ok());
    let version =
        Version(numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0));
    let flavour = match words.next() {
        Some("(nf_tables)") => Flavour::Nft,
        _ => Flavour::Legacy,
    };
    Some((version, flavour))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn versions_name_their_flavour() {
        let read = parse_version;
        assert_eq!(read("iptables v1.8.9 (nf_tables)\n"), Some((Version(1, 8, 9), Flavour::Nft)));
        assert_eq!(read("ip6tables v1.8.9 (legacy)"), Some((Version(1, 8, 9), Flavour::Legacy)));
        assert_eq!(read("iptables v1.4.21"), Some((Version(1, 4, 21), Flavour::Legacy)));
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

    fn installed(directory: &tempfile::TempDir) -> InstalledPrograms {
        let directory = Some(directory.path().to_owned());
        InstalledPrograms::find(&ProgramOptions { directory, ..ProgramOptions::default() })
    }

    const V4: PerFamily<bool> = PerFamily { v4: true, v6: false };
    const BOTH: PerFamily<bool> = PerFamily { v4: true, v6: true };

    #[test]
    fn a_status_that_may_mean_a_lock_means_what_the_program_says() {
        let usable = |says: &str, times: u8| {
            let directory = programs(&["iptables"], "iptables v1.8.9 (nf_tables)");
            let path = directory.path().join("iptables");
            let script = fs::read_to_string(&path).unwrap();
            let fail = format!("echo >>$0.runs; echo \"{says}\" >&2; exit 4");
            let fails = format!("[ $(grep -c '' $0.runs) -ge {times} ]");
            let probe = format!("[ $1 = --version ] || {fails} || {{ {fail}; }}\n");
            fs::write(&path, script.replace("echo", &(probe + "echo"))).unwrap();
            fs::write(directory.path().join("iptables.runs"), "").unwrap();
            let usable = installed(&directory).choose(None, V4).unwrap().usable();
            usable.map(|tools| tools.families()).map_err(|error| error.to_string())
        };
        assert_eq!(usable("Another app is currently holding the xtables lock", 2), Ok(V4));
        for denied in [
            "Could not fetch rule set generation id: Permission denied",
            "Fatal: can't open lock file /run/xtables.lock: Permission denied",
        ] {
            assert!(usable(denied, 2).unwrap_err().ends_with(denied));
        }
        let busy = "Could not fetch rule set generation id: Resource temporarily unavailable";
        assert_eq!(usable(busy, 1), Ok(V4));
    }

    #[test]
    fn missing_programs_are_named() {
        let choose = |directory: &tempfile::TempDir, wanted, families| {
            installed(directory).choose_flavour(wanted, families)
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
        let most = |wanted, families| {
            let tools = installed(&one).choose(wanted, families)?;
            let version = tools.get(IpFamily::V4).map(Programs::version);
            assert_eq!(version, Some(Version(1, 8, 10)));
            Ok::<_, MissingPrograms>((tools.flavour(), tools.families()))
        };
        assert_eq!(most(None, BOTH), Ok((Flavour::Nft, V4)), "but for IPv4");
        assert!(most(Some(Flavour::Legacy), BOTH).is_err());
        assert!(most(None, PerFamily { v4: false, v6: true }).is_err());
        let error = choose(&one, Some(Flavour::Legacy), V4).unwrap_err();
        assert!(error.contains("of the legacy flavour are not installed"), "{error}");
    }
}
