//! Sets of ipset, and rules of iptables.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Instant,
};

use switchyard_core::{error::ErrorChain, model::IpFamily};
use switchyard_netlink::Error;
use switchyard_netlink::ipset::{
    DestroyError, Entry, IpSets, SetBatch, SetRefusal, SetSpec, SetType,
};
use switchyard_xtables::{Changes, Dump, Jump, Programs, Table, ToolError, Tools, target};

use super::{Compared, Done, FamilyEntry, LateRules, RuleInputs, rules};
use crate::{
    existing_sets,
    sets::{self, Set},
};

/// The number of entries that kube-proxy's sets may have. More are allowed where more are needed.
const USUAL_MOST: u32 = 65_536;

/// The name of a set that takes the place of one with too little room.
const LARGER: &str = "SWITCHYARD-LARGER";

/// Why sets or rules could not be changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum XtablesError {
    /// A set cannot be read, made or emptied.
    #[error("the ipset {name} cannot be {action}")]
    Set { name: String, action: &'static str, source: Error },
    /// Another program has made a set of another type under the same name.
    #[error("the ipset {name} has the type {found}, not {wanted}; another program has made it")]
    SetType { name: String, found: &'static str, wanted: &'static str },
    /// Entries cannot be sent to the kernel.
    #[error("the entries of ipsets cannot be changed")]
    Entries(#[source] Error),
    /// The kernel refused an entry.
    #[error("the kernel refused the entry {entry} of the ipset {name}: {refusal}")]
    Entry { name: String, entry: Entry, refusal: SetRefusal },
    /// The programs of iptables failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A set that was replaced cannot be destroyed.
    #[error("the ipset {name} cannot be destroyed")]
    Destroy { name: &'static str, source: DestroyError },
}

/// Sets and rules, in the network namespace of the thread.
#[derive(Debug)]
pub(crate) struct Xtables {
    tools: Tools,
    sets: IpSets,
    /// Whether no nft table is left that was used before.
    pub(super) is_alone: bool,
}

impl Xtables {
    /// Opens the connection to the kernel's sets.
    pub(crate) fn open(tools: Tools) -> Result<Self, Error> {
        Ok(Self { tools, sets: IpSets::open()?, is_alone: false })
    }

    /// Makes sets and rules hold what they should, but leaves entries that nobody wants, and rules of iptables
    /// mode.
    pub(crate) fn compare(
        &mut self,
        wanted: &HashSet<FamilyEntry>,
        inputs: &[RuleInputs<'_>],
    ) -> Result<Compared, XtablesError> {
        let start = Instant::now();
        let mut compared = Compared::default();
        let mut by_set: BTreeMap<(IpFamily, Set), Vec<Entry>> = BTreeMap::new();
        for (family, set, entry) in wanted {
            by_set.entry((*family, *set)).or_default().push(*entry);
        }
        for inputs in inputs {
            for set in Set::ALL {
                let entries = by_set.remove(&(inputs.family, set)).unwrap_or_default();
                self.compare_set(inputs.family, set, &entries, &mut compared)?;
            }
        }
        let missing = compared.missing.clone();
        let refused = self.commit(&mut compared.done, &missing, &[])?;
        compared.refused.extend(refused.into_iter().map(|(entry, error)| (entry, error.into())));
        compared.done.commit = start.elapsed();
        let mut all = Vec::new();
        let mut is_late = false;
        for inputs in inputs {
            let Some(programs) = self.tools.get(inputs.family) else { continue };
            let (dump, is_whole) = match programs.save() {
                Ok(dump) => (dump, true),
                // Another program has put rules into the same tables that iptables cannot print.
                Err(ToolError::Incompatible { .. }) => {
                    (programs.held_jumps(&rules::jumps())?, false)
                }
                Err(error) => return Err(error.into()),
            };
            let (changes, altered) = compare_rules(inputs, &dump);
            if is_whole {
                compared.chains.extend(altered.into_iter().map(|chain| (inputs.family, chain)));
            }
            is_late |= rules::serve_iptables_mode(&dump);
            all.push((inputs.family, changes));
        }
        if is_late {
            compared.late = LateRules(all);
        } else {
            self.write_rules(&all, &mut compared.done)?;
        }
        Ok(compared)
    }

    fn compare_set(
        &mut self,
        family: IpFamily,
        set: Set,
        wanted: &[Entry],
        compared: &mut Compared,
    ) -> Result<(), XtablesError> {
        let name = set.name(family).to_string();
        let failed = |action| {
            let name = name.clone();
            move |source| XtablesError::Set { name, action, source }
        };
        let found = self.sets.describe(&name).map_err(failed("read"))?;
        let Some(found) = found else {
            self.sets.create(&spec(&name, set, family, wanted.len())).map_err(failed("made"))?;
            compared.done.added += 1;
            compared.missing.extend(wanted.iter().map(|entry| (family, set, *entry)));
            return Ok(());
        };
        if found.kind != set.kind() {
            let (found, wanted) = (found.kind.as_str(), set.kind().as_str());
            return Err(XtablesError::SetType { name, found, wanted });
        }
        if found.kind != SetType::BitmapPort && (found.max_elements as usize) < wanted.len() {
            return self.replace(family, set, wanted, compared);
        }
        let held = self.sets.entries(&name).map_err(failed("read"))?.unwrap_or_default();
        let held: BTreeSet<Entry> = held.into_iter().collect();
        let wanted: BTreeSet<Entry> = wanted.iter().copied().collect();
        compared.missing.extend(wanted.difference(&held).map(|entry| (family, set, *entry)));
        compared.stale.extend(held.difference(&wanted).map(|entry| (family, set, *entry)));
        Ok(())
    }

    /// Replaces a set by a larger one, which has its entries before rules match it.
    fn replace(
        &mut self,
        family: IpFamily,
        set: Set,
        wanted: &[Entry],
        compared: &mut Compared,
    ) -> Result<(), XtablesError> {
        let name = set.name(family).to_string();
        let failed = |name: &str, action| {
            let name = name.to_owned();
            move |source| XtablesError::Set { name, action, source }
        };
        let destroyed = |result: Result<bool, DestroyError>| {
            result.map_err(|source| XtablesError::Destroy { name: LARGER, source })
        };
        // An earlier attempt may have been interrupted.
        destroyed(self.sets.destroy(LARGER))?;
        let larger = spec(LARGER, set, family, wanted.len());
        self.sets.create(&larger).map_err(failed(LARGER, "made"))?;
        let mut batch = SetBatch::default();
        wanted.iter().for_each(|entry| batch.add(LARGER, *entry));
        let refusals = self.sets.commit(&batch).map_err(XtablesError::Entries)?;
        for refusal in refusals {
            let entry = wanted[refusal.index];
            let error = XtablesError::Entry { name: LARGER.to_owned(), entry, refusal };
            compared.refused.push(((family, set, entry), error.into()));
        }
        self.sets.swap(LARGER, &name).map_err(failed(&name, "replaced"))?;
        destroyed(self.sets.destroy(LARGER))?;
        let done = &mut compared.done;
        done.added += wanted.len();
        done.messages += batch.len();
        done.bytes += batch.bytes();
        Ok(())
    }

    /// Adds and deletes entries, all of which are tried, and returns those that were refused. Entries that are
    /// there already, or gone already, are no errors.
    pub(crate) fn commit(
        &mut self,
        done: &mut Done,
        add: &[FamilyEntry],
        delete: &[FamilyEntry],
    ) -> Result<Vec<(FamilyEntry, XtablesError)>, XtablesError> {
        if add.is_empty() && delete.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = SetBatch::default();
        for (family, set, entry) in add {
            batch.add(&set.name(*family).to_string(), *entry);
        }
        for (family, set, entry) in delete {
            batch.delete(&set.name(*family).to_string(), *entry);
        }
        let start = Instant::now();
        let refusals = self.sets.commit(&batch).map_err(XtablesError::Entries)?;
        done.commit += start.elapsed();
        done.added += add.len();
        done.removed += delete.len();
        done.messages += batch.len();
        done.bytes += batch.bytes();
        let refused = refusals.into_iter().filter_map(|refusal| {
            let refused = add.get(refusal.index).or_else(|| delete.get(refusal.index - add.len()));
            let (family, set, entry) = *refused?;
            let name = set.name(family).to_string();
            Some(((family, set, entry), XtablesError::Entry { name, entry, refusal }))
        });
        Ok(refused.collect())
    }

    /// Writes what a comparison found rules to lack.
    pub(crate) fn write_rules(
        &mut self,
        rules: &[(IpFamily, Changes)],
        done: &mut Done,
    ) -> Result<(), XtablesError> {
        for (family, changes) in rules {
            if let Some(programs) = self.tools.get(*family) {
                restore(programs, changes, done)?;
            }
        }
        for (family, _) in rules.iter().filter(|(_, changes)| *changes != Changes::default()) {
            self.remove_unused_set(*family);
        }
        Ok(())
    }

    /// Destroys the set that only kube-proxy's rules match, now that these are replaced.
    fn remove_unused_set(&mut self, family: IpFamily) {
        let deadline = Instant::now() + existing_sets::PATIENCE;
        let name = sets::unused_name(family);
        if let Err(error) = existing_sets::destroy(&mut self.sets, &name, deadline) {
            tracing::warn!(err = %ErrorChain(&error), set = name, "Failed to destroy an ipset of kube-proxy");
        }
    }

    /// Writes the chains that depend on Services anew.
    pub(crate) fn write_exceptions(
        &self,
        inputs: &RuleInputs<'_>,
        done: &mut Done,
    ) -> Result<(), XtablesError> {
        let Some(programs) = self.tools.get(inputs.family) else { return Ok(()) };
        let mut changes = Changes::default();
        for (table, chain) in rules::exceptions(inputs) {
            changes.write_chain(table, chain);
        }
        restore(programs, &changes, done)
    }
}

fn restore(programs: &Programs, changes: &Changes, done: &mut Done) -> Result<(), XtablesError> {
    let text = changes.to_text();
    if text.is_empty() {
        return Ok(());
    }
    let restored = programs.restore(&text)?;
    let (added, removed) = changes.counts();
    done.added += added;
    done.removed += removed;
    done.messages += text.lines().count();
    done.bytes += text.len();
    done.commit += restored.commit;
    done.waited += restored.waited;
    Ok(())
}

/// Returns what the rules of a family lack, and the chains where something is wrong.
fn compare_rules(inputs: &RuleInputs<'_>, dump: &Dump) -> (Changes, Vec<String>) {
    let mut altered = Vec::new();
    let mut changes = Changes::default();
    for (table, chain) in rules::chains(inputs) {
        if dump.chain(table, &chain.name) != Some(&chain.rules) {
            altered.push(format!("chain {} in {}", chain.name, table.name()));
            changes.write_chain(table, chain);
        }
    }
    for (table, from) in compare_jumps(&mut changes, dump) {
        altered.push(format!("chain {from} in {}", table.name()));
    }
    (changes, altered)
}

/// Makes sure of exactly one jump each, and removes those that only iptables mode has. Returns the chains
/// where something was wrong.
fn compare_jumps(changes: &mut Changes, dump: &Dump) -> BTreeSet<(Table, &'static str)> {
    let jumps = rules::jumps();
    let mut wrong = BTreeSet::new();
    for (table, from) in rules::BUILT_IN {
        let of_chain = || jumps.iter().filter(|jump| (jump.table, jump.from) == (table, from));
        let mut missing: Vec<&Jump> = of_chain().collect();
        for rule in dump.chain(table, from).unwrap_or_default() {
            let leads = |jump: &Jump| jump.table == table && target(rule) == Some(jump.to);
            if let Some(at) = missing.iter().position(|jump| jump.rule == *rule) {
                missing.remove(at);
            } else if jumps.iter().any(leads) {
                changes.delete_rule(table, from, rule);
                wrong.insert((table, from));
            }
        }
        for jump in missing {
            changes.insert_rule(table, from, &jump.rule);
            wrong.insert((table, from));
        }
    }
    wrong
}

/// Returns the set with room for so many entries.
fn spec(name: &str, set: Set, family: IpFamily, entries: usize) -> SetSpec {
    let needed = u32::try_from(entries.saturating_mul(2)).unwrap_or(u32::MAX);
    SetSpec {
        name: name.to_owned(),
        kind: set.kind(),
        is_v6: family == IpFamily::V6,
        max_elements: if entries > USUAL_MOST as usize { needed } else { USUAL_MOST },
    }
}

#[cfg(test)]
mod kernel_tests {
    use std::{net::Ipv4Addr, process::Command};

    use switchyard_core::{model::PerFamily, state::NodeState};
    use switchyard_xtables::{InstalledPrograms, ProgramOptions};
    use test_netns::in_namespace;

    use super::*;
    use crate::layout::exceptions::Exceptions;

    const TCP: u8 = 6;

    fn entry(last: u8) -> FamilyEntry {
        let ip = Ipv4Addr::new(10, 96, 0, last).into();
        (IpFamily::V4, Set::ClusterIp, Entry::IpPort { ip, protocol: TCP, port: 80 })
    }

    fn ipset(line: &str) -> String {
        let output = Command::new("ipset").args(line.split(' ')).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn compare(wanted: impl IntoIterator<Item = FamilyEntry>) -> Compared {
        let programs = InstalledPrograms::find(&ProgramOptions::default());
        let v4 = PerFamily { v4: true, v6: false };
        let mut filter = Xtables::open(programs.choose(None, v4).unwrap()).unwrap();
        let (node, exceptions) = (NodeState::default(), Exceptions::default());
        let inputs =
            RuleInputs { family: IpFamily::V4, mark: 1, node: &node, exceptions: &exceptions };
        filter.compare(&wanted.into_iter().collect(), &[inputs]).unwrap()
    }

    #[test]
    fn a_set_without_room_is_replaced() {
        in_namespace(|| {
            ipset("create KUBE-CLUSTER-IP hash:ip,port maxelem 2");
            ipset("add KUBE-CLUSTER-IP 10.96.0.9,tcp:80");
            let compared = compare([1, 2, 3].map(entry));
            assert!(compared.refused.is_empty(), "{:?}", compared.refused);
            let saved = ipset("save KUBE-CLUSTER-IP");
            assert!(saved.contains(&format!("maxelem {USUAL_MOST}")), "{saved}");
            let added = |last: u8| saved.contains(&format!("add KUBE-CLUSTER-IP 10.96.0.{last},"));
            assert_eq!([1, 2, 3, 9].map(added), [true, true, true, false], "{saved}");
            assert!(!ipset("list -n").contains(LARGER));
        });
    }

    #[test]
    fn an_entry_that_is_refused_is_named_and_the_rest_is_done() {
        in_namespace(|| {
            let ip = "fd00::1".parse().unwrap();
            let bad = (IpFamily::V4, Set::ClusterIp, Entry::IpPort { ip, protocol: TCP, port: 80 });
            let compared = compare([entry(1), bad, entry(2)]);
            let [(refused, _)] = &compared.refused[..] else { panic!("{:?}", compared.refused) };
            assert_eq!(*refused, bad);
            let saved = ipset("save KUBE-CLUSTER-IP");
            assert_eq!(saved.lines().filter(|line| line.starts_with("add ")).count(), 2, "{saved}");
        });
    }
}
