//! What is wrong with an object, and whether that has been said before.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use crate::objects::{Kind, ObjectKey};

/// Something in an object that cannot be used. The rest of the object is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Problem {
    /// The object.
    pub object: ObjectKey,
    /// The field, as a path such as `spec.ports[0].nodePort`.
    pub field: String,
    /// What is wrong with the field, and what was done instead.
    pub message: String,
    /// The same in one word.
    pub reason: Reason,
}

/// Why something cannot be used, for those who count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The object could not be decoded; its last good state stays.
    Malformed,
    /// A value is not one that its field can have.
    Invalid,
    /// The address, protocol and port belong to another Service.
    Conflict,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.object)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// Collects the problems of one object while it is parsed.
pub(crate) struct Problems {
    object: ObjectKey,
    reason: Reason,
    found: Vec<Problem>,
}

impl Problems {
    /// At most this many are kept for an object: a slice with a thousand bad addresses is one
    /// mistake, not a thousand.
    const MOST: usize = 8;

    /// Values of `object` that its fields cannot have.
    pub(crate) fn of(object: ObjectKey) -> Self {
        Self { object, reason: Reason::Invalid, found: Vec::new() }
    }

    /// What `object` loses to others.
    pub(crate) fn conflicts_of(object: ObjectKey) -> Self {
        Self { reason: Reason::Conflict, ..Self::of(object) }
    }

    pub(crate) fn add(&mut self, field: impl Into<String>, message: impl fmt::Display) {
        if self.found.len() < Self::MOST {
            self.found.push(Problem {
                object: self.object.clone(),
                field: field.into(),
                message: message.to_string(),
                reason: self.reason,
            });
        }
    }

    pub(crate) fn into_vec(self) -> Vec<Problem> {
        self.found
    }
}

/// The problems that objects have now, so that each is reported once, and again only after it went
/// away and came back.
#[derive(Debug, Default)]
pub(crate) struct KnownProblems {
    known: HashMap<ObjectKey, HashSet<Problem>>,
}

impl KnownProblems {
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The objects of a kind that have problems.
    pub(crate) fn objects(&self, kind: Kind) -> impl Iterator<Item = &ObjectKey> {
        self.known.keys().filter(move |object| object.kind == kind)
    }

    /// Replaces the problems of `object`, and returns those that are new.
    pub(crate) fn replace(&mut self, object: &ObjectKey, problems: Vec<Problem>) -> Vec<Problem> {
        if problems.is_empty() {
            self.known.remove(object);
            return Vec::new();
        }
        let before = self.known.entry(object.clone()).or_default();
        let new = problems.iter().filter(|problem| !before.contains(problem)).cloned().collect();
        *before = problems.into_iter().collect();
        new
    }
}
