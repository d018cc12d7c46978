//! The annotations of an EndpointSlice that give its endpoints weights.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::IpAddr,
};

use super::{endpoint::SliceEndpoint, problem::Problems, values::clip};
use crate::{model::parse_ip, objects::Metadata};

/// One weight for all endpoints of the slice: ours, and the name that Cilium has for the same. Ours
/// counts if there are both.
const SHARED: [&str; 2] = ["switchyard/weight", "service.cilium.io/weight"];
/// Weights of single addresses: `10.244.1.7=3, 10.244.1.8=0`.
const SINGLE: &str = "switchyard/weights";
/// The weight of an endpoint that no annotation names.
const USUAL: u16 = 1;

/// Gives the endpoints of a slice the weights that its annotations ask for. Parts that cannot be
/// used are left out and added to `problems`.
pub(crate) fn apply(metadata: &Metadata, endpoints: &mut [SliceEndpoint], problems: &mut Problems) {
    let annotations = &metadata.annotations;
    if annotations.is_empty() {
        return;
    }
    let shared = SHARED.iter().find_map(|name| annotations.get_key_value(*name));
    if let Some((name, text)) = shared {
        match parse_weight(text) {
            Some(weight) => endpoints.iter_mut().for_each(|endpoint| endpoint.weight = weight),
            None => problems.add(
                format!("metadata.annotations[{name}]"),
                format_args!("`{}` is not within 0 and 65535; {USUAL} is used", clip(text.trim())),
            ),
        }
    }
    if let Some(text) = annotations.get(SINGLE) {
        apply_single(text, endpoints, problems);
    }
}

fn apply_single(text: &str, endpoints: &mut [SliceEndpoint], problems: &mut Problems) {
    let known: BTreeSet<IpAddr> = endpoints.iter().map(|endpoint| endpoint.address).collect();
    let mut weights: BTreeMap<IpAddr, u16> = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match parse_part(part) {
            Ok((address, _)) if !known.contains(&address) => {
                refuse(part, "names no endpoint of the slice; ignored", problems);
            }
            Ok((address, weight)) => match weights.entry(address) {
                Entry::Vacant(vacant) => drop(vacant.insert(weight)),
                Entry::Occupied(_) => {
                    refuse(part, "names an address again; its first weight is used", problems);
                }
            },
            Err(reason) => refuse(part, reason, problems),
        }
    }
    for endpoint in endpoints {
        if let Some(weight) = weights.get(&endpoint.address) {
            endpoint.weight = *weight;
        }
    }
}

fn refuse(part: &str, reason: &str, problems: &mut Problems) {
    let field = format!("metadata.annotations[{SINGLE}]");
    problems.add(field, format_args!("`{}` {reason}", clip(part)));
}

fn parse_part(part: &str) -> Result<(IpAddr, u16), &'static str> {
    let (address, weight) = part.split_once('=').ok_or("is not ADDRESS=WEIGHT; ignored")?;
    let address =
        parse_ip(address.trim()).map_err(|_| "does not begin with an address; ignored")?;
    let weight = parse_weight(weight).ok_or("has no weight within 0 and 65535; ignored")?;
    Ok((address, weight))
}

/// Parses a weight: digits alone, at most 65535.
fn parse_weight(text: &str) -> Option<u16> {
    let text = text.trim();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}
