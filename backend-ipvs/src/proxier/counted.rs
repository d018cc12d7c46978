//! Things that several Service ports may need at once.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// The number of times that each thing is needed.
#[derive(Debug)]
pub(crate) struct Counted<T>(HashMap<T, u32>);

impl<T> Default for Counted<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Copy + Eq + Hash + Ord> Counted<T> {
    /// Counts one more need.
    pub(crate) fn add(&mut self, thing: T) {
        *self.0.entry(thing).or_default() += 1;
    }

    /// Counts all needs that another value counts.
    pub(crate) fn extend(&mut self, other: Self) {
        other.0.into_iter().for_each(|(thing, count)| *self.0.entry(thing).or_default() += count);
    }

    /// Whether the thing is needed.
    pub(crate) fn contains(&self, thing: &T) -> bool {
        self.0.contains_key(thing)
    }

    /// The things that are needed, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = T> + use<'_, T> {
        self.0.keys().copied()
    }

    /// Adds up changes. Returns the things that are needed from now on, and those that are no longer,
    /// in order.
    pub(crate) fn apply(&mut self, changes: &BTreeMap<T, i64>) -> (Vec<T>, Vec<T>) {
        let (mut come, mut gone) = (Vec::new(), Vec::new());
        for (thing, change) in changes {
            let before = self.0.get(thing).copied().unwrap_or(0);
            let after = u32::try_from(i64::from(before) + change).unwrap_or(0);
            match (before, after) {
                (_, 0) => drop(self.0.remove(thing)),
                (_, after) => drop(self.0.insert(*thing, after)),
            }
            match (before, after) {
                (0, 1..) => come.push(*thing),
                (1.., 0) => gone.push(*thing),
                _ => {}
            }
        }
        (come, gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_goes_with_the_last_need() {
        let mut counted = Counted::default();
        counted.add("a");
        counted.add("a");
        assert_eq!(counted.apply(&[("a", -1), ("b", 2)].into()), (vec!["b"], vec![]));
        assert!(counted.contains(&"a"));
        // One goes and one comes: nothing changes.
        assert_eq!(counted.apply(&[("a", 0), ("b", -1)].into()), (vec![], vec![]));
        assert_eq!(counted.apply(&[("a", -1), ("b", -1)].into()), (vec![], vec!["a", "b"]));
        assert_eq!(counted.iter().count(), 0);
    }
}
