//! Tables that may have been much larger.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash},
};

/// The room that a table keeps, whatever it holds.
const LEAST: usize = 1024;

/// Gives back room of a table of which less than a quarter is in use. Called after each change,
/// this costs no more than to add what was there.
pub fn shrink_table<K: Eq + Hash, V, S: BuildHasher>(table: &mut HashMap<K, V, S>) {
    if table.capacity() > LEAST.max(4 * table.len()) {
        table.shrink_to_fit();
    }
}
