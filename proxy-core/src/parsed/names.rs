//! Names from objects, checked before they go into rules' comments and chains' names.
//!
//! The API server checks names; a directory of manifests does not. An invalid
//! name could break out of a quoted comment in a saved ruleset.

use super::problem::Problems;
use crate::{
    model::ServiceName,
    objects::{Kind, Metadata, ObjectKey},
};

/// The longest name that the API accepts (RFC 1123 subdomain).
const LONGEST: usize = 253;
/// The longest port name (RFC 1123 label).
const LONGEST_PORT: usize = 63;

/// Returns the Service's name, or `None` if it is not a valid DNS name.
pub(crate) fn service_name(metadata: &Metadata, problems: &mut Problems) -> Option<ServiceName> {
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
pub(crate) fn is_dns_name(name: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=LONGEST).contains(&name.len())
        && name.bytes().all(|b| alphanumeric(b) || b == b'-' || b == b'.')
        && name.bytes().next().is_some_and(alphanumeric)
        && name.bytes().last().is_some_and(alphanumeric)
}

/// Checks the name of a port, which may be empty. Returns what is wrong with it.
pub(crate) fn check_port_name(name: &str) -> Result<(), &'static str> {
    if name.len() > LONGEST_PORT {
        return Err("is longer than 63 characters");
    }
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if name.bytes().all(is_allowed) { Ok(()) } else { Err("has characters that no port name has") }
}
