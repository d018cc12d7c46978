//! The objects that the engine has been sent, by key: what a list leaves out is gone.

use std::collections::{HashMap, hash_map::Entry};

use switchyard_core::objects::ObjectKey;

/// The least size of an object, however short its line is: about what a Service takes in memory.
const LEAST: u64 = 2048;
/// The most that the objects may take: half a million small ones.
const MOST: u64 = 1 << 30;

#[derive(Debug)]
struct Known {
    size: u64,
    /// The number of the last list that had it.
    list: u64,
}

/// The keys of all objects.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    known: HashMap<ObjectKey, Known>,
    size: u64,
    /// The number of lists that have begun.
    lists: u64,
    is_listing: bool,
    /// Whether the list has an object whose name could not be read, which may be any.
    has_unknown: bool,
    is_synced: bool,
}

/// The end of a list.
#[derive(Debug)]
pub(super) struct Ended {
    /// The objects that the list left out, which are forgotten.
    pub(super) gone: Vec<ObjectKey>,
    /// Whether no list has ended before.
    pub(super) is_first: bool,
    /// Whether the list had no object that could not be read.
    pub(super) is_whole: bool,
}

/// The objects would take too much memory.
#[derive(Debug)]
pub(super) struct Full;

impl Ledger {
    /// Begins a list, in the place of one that has not ended.
    pub(super) fn begin_list(&mut self) {
        self.lists += 1;
        (self.is_listing, self.has_unknown) = (true, false);
    }

    /// Notes an object whose name could not be read: its list removes nothing.
    pub(super) fn add_unknown(&mut self) {
        self.has_unknown = true;
    }

    /// Forgets that a list has begun.
    pub(super) fn break_list(&mut self) {
        self.is_listing = false;
    }

    /// Ends the list; `None` if none has begun.
    pub(super) fn end_list(&mut self) -> Option<Ended> {
        if !self.is_listing {
            return None;
        }
        self.is_listing = false;
        let (lists, has_unknown, size) = (self.lists, self.has_unknown, &mut self.size);
        let gone = self.known.extract_if(|_, known| known.list != lists && !has_unknown).map(
            |(key, known)| {
                *size -= known.size;
                key
            },
        );
        let gone = gone.collect();
        let is_first = !std::mem::replace(&mut self.is_synced, true);
        Some(Ended { gone, is_first, is_whole: !has_unknown })
    }

    /// Notes an object, whose line has this length.
    pub(super) fn add(&mut self, key: ObjectKey, length: usize) -> Result<(), Full> {
        let size = LEAST.max(length as u64);
        let entry = self.known.entry(key);
        let before = match &entry {
            Entry::Occupied(known) => known.get().size,
            Entry::Vacant(_) => 0,
        };
        let total = self.size - before + size;
        if total > MOST {
            // It is in the list, though as it was.
            entry.and_modify(|known| known.list = self.lists);
            return Err(Full);
        }
        self.size = total;
        entry.insert_entry(Known { size, list: self.lists });
        Ok(())
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) {
        if let Some(known) = self.known.remove(key) {
            self.size -= known.size;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::objects::{Kind, Metadata};

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new(Kind::Service, &Metadata { name: name.to_owned(), ..Metadata::default() })
    }

    #[test]
    fn what_is_too_much_stays_as_it_was() {
        let mut ledger = Ledger::default();
        let half = (MOST / 2) as usize;
        ledger.add(key("a"), half).unwrap();
        ledger.add(key("b"), half).unwrap();
        ledger.add(key("c"), 1).unwrap_err();
        ledger.begin_list();
        ledger.add(key("a"), half + 1).unwrap_err();
        ledger.add(key("b"), 1).unwrap();
        assert!(ledger.end_list().unwrap().gone.is_empty());
        assert_eq!(ledger.size, MOST / 2 + LEAST);
        ledger.begin_list();
        assert_eq!(ledger.end_list().unwrap().gone.len(), 2);
        assert_eq!(ledger.size, 0);
    }
}
