//! The listing of kube-proxy's table before a sync, by `nft --json`.

use std::collections::{BTreeMap, BTreeSet};

use packet_rig::NetNs;
use serde_json::Value;
use switchyard_core::model::IpFamily;

use super::Result;

/// The name of the table, in both families.
const TABLE: &str = "kube-proxy";

/// nft's word for the family.
pub fn nft_family(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ip",
        IpFamily::V6 => "ip6",
    }
}

/// The contents of a table of nftables mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    pub chains: BTreeSet<String>,
    pub sets: BTreeSet<String>,
    pub maps: BTreeSet<String>,
}

impl Listing {
    /// Lists the table `kube-proxy`; the listing is empty if there is no such table.
    ///
    /// # Errors
    ///
    /// If nft fails, or prints something that is no listing: an empty listing always means that
    /// there is no table.
    pub fn read(namespace: &NetNs, family: IpFamily) -> Result<Self> {
        let mut listing = Self::default();
        let tables = list(namespace, &["tables", nft_family(family)])?;
        if !tables.iter().any(|object| object["table"]["name"] == TABLE) {
            return Ok(listing);
        }
        for object in list(namespace, &["table", nft_family(family), TABLE])? {
            for (kind, names) in [
                ("chain", &mut listing.chains),
                ("set", &mut listing.sets),
                ("map", &mut listing.maps),
            ] {
                names.extend(object[kind]["name"].as_str().map(str::to_owned));
            }
        }
        Ok(listing)
    }

    /// Whether there is nothing, not even a table.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Runs `nft --json list` and returns the listed objects.
fn list(namespace: &NetNs, what: &[&str]) -> Result<Vec<Value>> {
    let arguments = [&["--json", "list"], what].concat();
    let output = namespace.output("nft", &arguments, "")?;
    let mut listed: Value = serde_json::from_str(&output)?;
    match listed["nftables"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Err(format!("nft {} printed no list: {output}", arguments.join(" ")).into()),
    }
}

/// The elements of a set or map: values by keys, as nft writes them; empty values in sets. `None`
/// if an element has an unknown form.
pub fn elements(
    namespace: &NetNs,
    family: IpFamily,
    kind: &str,
    name: &str,
) -> Result<Option<BTreeMap<String, String>>> {
    let objects = list(namespace, &[kind, nft_family(family), TABLE, name])?;
    let Some(listed) = objects.iter().find_map(|object| object[kind].as_object()) else {
        return Ok(None);
    };
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
