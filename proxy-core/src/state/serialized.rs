//! Forms in which fields of a [`State`](super::State) are serialized.

use std::{collections::HashMap, fmt::Display, sync::Arc, time::Duration};

use serde::{Serialize, Serializer};

/// Serializes the values as a list in the order of their keys, which the values contain.
pub(super) fn sorted_values<S: Serializer, K: Ord, V: Serialize>(
    map: &HashMap<K, Arc<V>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    serializer.collect_seq(entries.into_iter().map(|(_, value)| value))
}

/// Serializes a map with keys as they print, in order.
pub(super) fn by_name<S: Serializer, K: Ord + Display, V: Serialize>(
    map: &HashMap<K, V>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    serializer.collect_map(entries.into_iter().map(|(key, value)| (key.to_string(), value)))
}

/// Serializes a time as seconds.
pub(super) fn seconds<S: Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs()).serialize(serializer)
}
