//! Hash tables.

use std::{
    collections,
    hash::{BuildHasher, Hash},
};

use foldhash::fast::RandomState;

/// A table that is quicker than the standard library's: names and addresses are looked up a hundred
/// times for each Service of a first list. The seeds differ from start to start, but are not of the
/// system's random numbers.
pub type HashMap<K, V> = collections::HashMap<K, V, RandomState>;

/// A [`HashMap`] without values.
pub type HashSet<T> = collections::HashSet<T, RandomState>;

/// The room that a table keeps, whatever it holds.
const LEAST: usize = 1024;

/// Gives back room of a table of which less than a quarter is in use. Called after each change,
/// this costs no more than to add what was there.
pub fn shrink_table<K: Eq + Hash, V, S: BuildHasher>(table: &mut collections::HashMap<K, V, S>) {
    if table.capacity() > LEAST.max(4 * table.len()) {
        table.shrink_to_fit();
    }
}
