//! Removal of entries from a table of iptables-legacy.
//!
//! A table is a row of entries. The entries of a built-in chain stand between the start of the
//! chain's hook and its policy; any other chain begins with an entry whose target is `ERROR` and
//! holds the chain's name, and ends with an entry that returns. A jump holds the offset, in bytes
//! from the start of the table, of the first rule of the other chain.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use switchyard_model::IpFamily;

use crate::xtables::{
    OwnedChains, Table,
    legacy_table::{Contents, HOOKS},
};

/// The built-in chains, by hook (`NF_INET_PRE_ROUTING` to `NF_INET_POST_ROUTING`).
const BUILT_IN: [&str; HOOKS] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// The length of `struct ipt_entry` and of `struct ip6t_entry`, without matches and target, and the
/// places of `target_offset` and `next_offset` there.
const ENTRY4: [usize; 3] = [112, 88, 90];
const ENTRY6: [usize; 3] = [168, 140, 142];

/// `struct xt_entry_target`: size, name, and revision, followed by the target's own data.
const TARGET_NAME: Range<usize> = 2..31;
const TARGET: usize = 32;

struct Entry {
    at: Range<usize>,
    target: Target,
}

enum Target {
    /// A jump to the rule that begins at `to`; the number stands at `value`.
    Jump { to: usize, value: usize },
    /// The start of a chain with this name.
    Chain(String),
    /// Any other target.
    Other,
}

/// Returns the table without the owned chains and the jumps to them, and the numbers of the entries
/// that stay. Returns `None` if the table has an unknown form.
pub(crate) fn without(
    old: &Contents,
    table: Table,
    family: IpFamily,
    owned: &OwnedChains,
) -> Option<(Contents, Vec<usize>)> {
    let entries = entries(&old.bytes, family)?;
    let owners = owners(&entries, old);
    // Where jumps to a chain lead.
    let chains: HashMap<usize, &str> = entries
        .iter()
        .filter_map(|entry| match &entry.target {
            Target::Chain(name) => Some((entry.at.end, name.as_str())),
            _ => None,
        })
        .collect();
    let is_own = |index: usize| owned.contains(table, owners[index]);
    let leads_to = |entry: &Entry| match entry.target {
        Target::Jump { to, .. } => {
            chains.get(&to).copied().filter(|name| owned.contains(table, name))
        }
        _ => None,
    };
    let others = entries.iter().enumerate().filter(|(index, _)| !is_own(*index));
    let held: HashSet<&str> = others
        .filter_map(|(index, entry)| Some((owners[index], leads_to(entry)?)))
        .filter(|(from, to)| !owned.has_jump(table, from, to))
        .map(|(_, to)| to)
        .collect();
    let stays = |index: usize| {
        let entry = &entries[index];
        let ends_chain = owners.get(index + 1) != Some(&owners[index]);
        match is_own(index) {
            // A chain that is held stays, without rules.
            true => {
                let is_frame = matches!(entry.target, Target::Chain(_)) || ends_chain;
                is_frame && held.contains(owners[index])
            }
            false => leads_to(entry).is_none_or(|to| held.contains(to)),
        }
    };
    let kept: Vec<usize> = (0..entries.len()).filter(|&index| stays(index)).collect();

    // The new offset of each entry; of a removed entry, that of the next which stays.
    let mut moved: HashMap<usize, usize> = HashMap::new();
    let mut bytes = Vec::with_capacity(old.bytes.len());
    for (index, entry) in entries.iter().enumerate() {
        moved.insert(entry.at.start, bytes.len());
        if stays(index) {
            bytes.extend_from_slice(&old.bytes[entry.at.clone()]);
        }
    }
    for &index in &kept {
        let entry = &entries[index];
        if let Target::Jump { to, value } = entry.target {
            let at = moved[&entry.at.start] + (value - entry.at.start);
            let to = u32::try_from(*moved.get(&to)?).ok()?;
            bytes.get_mut(at..at + 4)?.copy_from_slice(&to.to_ne_bytes());
        }
    }
    let place = |hook: usize, old_place: u32| match old.valid_hooks & (1 << hook) {
        0 => Some(old_place),
        _ => u32::try_from(*moved.get(&(old_place as usize))?).ok(),
    };
    let mut new = Contents { bytes, entries: u32::try_from(kept.len()).ok()?, ..old.clone() };
    for hook in 0..HOOKS {
        new.hook_entry[hook] = place(hook, old.hook_entry[hook])?;
        new.underflow[hook] = place(hook, old.underflow[hook])?;
    }
    Some((new, kept))
}

/// Returns the name of the chain that each entry belongs to.
fn owners<'a>(entries: &'a [Entry], blob: &Contents) -> Vec<&'a str> {
    let built_in = |start: usize| {
        (0..HOOKS).find(|&hook| {
            let range = blob.hook_entry[hook] as usize..=blob.underflow[hook] as usize;
            blob.valid_hooks & (1 << hook) != 0 && range.contains(&start)
        })
    };
    let mut chain = "";
    let mut owner = |entry: &'a Entry| {
        match (&entry.target, built_in(entry.at.start)) {
            (Target::Chain(name), _) => chain = name,
            (_, Some(hook)) => chain = BUILT_IN[hook],
            _ => {}
        }
        chain
    };
    entries.iter().map(&mut owner).collect()
}

/// Splits a table into its entries. Returns `None` if it has an unknown form.
fn entries(bytes: &[u8], family: IpFamily) -> Option<Vec<Entry>> {
    let [size, target_offset, next_offset] = match family {
        IpFamily::V4 => ENTRY4,
        IpFamily::V6 => ENTRY6,
    };
    let number = |at: usize| -> Option<usize> {
        Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?).into())
    };
    let mut entries = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let next = number(start + next_offset)?;
        let target = number(start + target_offset)?;
        if target < size || next < target + TARGET {
            return None;
        }
        let entry = bytes.get(start..start + next)?;
        let name = word(&entry[target..][TARGET_NAME])?;
        let value = target + TARGET;
        let target = match name {
            "" => {
                let verdict = i32::from_ne_bytes(entry.get(value..value + 4)?.try_into().ok()?);
                match usize::try_from(verdict) {
                    Ok(to) => Target::Jump { to, value: start + value },
                    Err(_) => Target::Other,
                }
            }
            "ERROR" => Target::Chain(word(&entry[value..])?.to_owned()),
            _ => Target::Other,
        };
        entries.push(Entry { at: start..start + next, target });
        start += next;
    }
    Some(entries)
}

/// Returns the text up to the first zero.
fn word(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes.split(|byte| *byte == 0).next()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_table_are_rejected() {
        for bytes in [&[0; 111][..], &[0; 112], &[255; 400]] {
            assert!(entries(bytes, IpFamily::V4).is_none());
            assert!(entries(bytes, IpFamily::V6).is_none());
        }
        assert!(entries(&[], IpFamily::V4).is_some_and(|entries| entries.is_empty()));
    }
}
