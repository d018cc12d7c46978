//! Forms in which fields of a [`State`](super::State) are serialized.

use std::{collections, fmt::Display, sync::Arc};

use serde::{Serialize, Serializer};

use crate::model::HashMap;

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
    map: &collections::HashMap<K, V>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    serializer.collect_map(entries.into_iter().map(|(key, value)| (key.to_string(), value)))
}

/// A time as seconds.
pub(super) mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(|time| time.as_secs()).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::deserialize(deserializer)?.map(Duration::from_secs))
    }
}
