//! What kube-proxy learns of its table before a sync, by `nft --json`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::IpFamily;
use crate::{error::Result, netns::NetNs};

/// What a table of nftables mode has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The names of its chains.
    pub chains: BTreeSet<String>,
    /// The names of its sets.
    pub sets: BTreeSet<String>,
    /// The names of its maps.
    pub maps: BTreeSet<String>,
}

impl Listing {
    /// Lists the table `kube-proxy`; it is empty if there is none.
    pub fn read(namespace: &NetNs, family: IpFamily) -> Self {
        let mut listing = Self::default();
        let arguments = ["--json", "list", "table", family.nft(), "kube-proxy"];
        let Ok(text) = namespace.output("nft", &arguments, "") else { return listing };
        let Ok(document) = serde_json::from_str::<Value>(&text) else { return listing };
        for object in document["nftables"].as_array().into_iter().flatten() {
            for (kind, names) in [
                ("chain", &mut listing.chains),
                ("set", &mut listing.sets),
                ("map", &mut listing.maps),
            ] {
                names.extend(object[kind]["name"].as_str().map(str::to_owned));
            }
        }
        listing
    }

    /// Whether there is nothing, not even a table.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The elements of a set or map: values by keys, as nft writes them; empty values in sets. `None`
/// if they cannot be read.
pub(super) fn elements(
    namespace: &NetNs,
    family: IpFamily,
    kind: &str,
    name: &str,
) -> Result<Option<BTreeMap<String, String>>> {
    let arguments = ["--json", "list", kind, family.nft(), "kube-proxy", name];
    let text = namespace.output("nft", &arguments, "")?;
    let Ok(document) = serde_json::from_str::<Value>(&text) else { return Ok(None) };
    let objects = document["nftables"].as_array().into_iter().flatten();
    let listed = objects.filter_map(|object| object[kind].as_object()).next();
    let Some(listed) = listed else { return Ok(None) };
    let Some(elements) = listed.get("elem").and_then(Value::as_array) else {
        return Ok(Some(BTreeMap::new()));
    };
    let read = |element: &Value| match element.as_array() {
        Some(pair) => Some((key(pair.first()?)?, value(pair.get(1)?)?)),
        None => Some((key(element)?, String::new())),
    };
    Ok(elements.iter().map(read).collect())
}

fn key(json: &Value) -> Option<String> {
    // Elements with a comment are wrapped.
    let json = json.get("elem").map_or(json, |element| &element["val"]);
    match json.get("concat").and_then(Value::as_array) {
        Some(fields) => Some(fields.iter().map(word).collect::<Option<Vec<_>>>()?.join(" . ")),
        None => word(json),
    }
}

fn value(json: &Value) -> Option<String> {
    match json.get("goto") {
        Some(to) => Some(format!("goto {}", to["target"].as_str()?)),
        None => json.as_object()?.contains_key("drop").then(|| "drop".to_owned()),
    }
}

fn word(json: &Value) -> Option<String> {
    json.as_str().map(str::to_owned).or_else(|| json.as_u64().map(|number| number.to_string()))
}
