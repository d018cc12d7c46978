//! Names from objects, checked before they go into rules' comments and chains' names.
//!
//! The API server checks names; a directory of manifests does not. A name that is none could
//! otherwise break out of a quoted comment in a saved ruleset.

use super::problem::Problems;
use crate::{
    model::ServiceName,
    objects::{Kind, Metadata, ObjectKey},
};

/// The longest name the API takes (RFC 1123 subdomain).
const LONGEST: usize = 253;
/// The longest port name (RFC 1123 label).
const LONGEST_PORT: usize = 63;

/// The Service's name, unless it is none.
pub(super) fn service_name(metadata: &Metadata, problems: &mut Problems) -> Option<ServiceName> {
    let key = ObjectKey::new(Kind::Service, metadata);
    let mut usable = true;
    for (field, name) in [("metadata.namespace", &key.namespace), ("metadata.name", &key.name)] {
        if !is_dns_name(name) {
            problems.add(field, "is not a DNS name (RFC 1123); the object is ignored");
            usable = false;
        }
    }
    usable.then(|| ServiceName::new(&key.namespace, &key.name))
}

/// Whether `name` can be the name of an object.
pub(super) fn is_dns_name(name: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=LONGEST).contains(&name.len())
        && name.bytes().all(|b| alphanumeric(b) || b == b'-' || b == b'.')
        && name.bytes().next().is_some_and(alphanumeric)
        && name.bytes().last().is_some_and(alphanumeric)
}

/// Whether `name` can be the name of a port; the empty one can.
pub(super) fn check_port_name(name: &str) -> Result<(), &'static str> {
    if name.len() > LONGEST_PORT {
        return Err("is longer than 63 characters");
    }
    match name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')) {
        true => Ok(()),
        false => Err("has characters that no port name has"),
    }
}
