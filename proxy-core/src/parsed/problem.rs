//! Problems of objects: fields whose values cannot be used.

use std::fmt;

use crate::objects::ObjectKey;

/// A value in an object that cannot be used. The rest of the object is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Problem {
    /// The object.
    pub object: ObjectKey,
    /// The field, as a path such as `spec.ports[0].nodePort`.
    pub field: String,
    /// The problem with the field, and what was done instead.
    pub message: String,
    /// The kind of the problem, for counters.
    pub reason: Reason,
}

/// Why a value cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The object could not be decoded; its last good state stays.
    Malformed,
    /// The value is not one that its field can have.
    Invalid,
    /// The address, protocol and port belong to another Service.
    Conflict,
    /// The backend cannot program the value; the nearest thing that it can is programmed.
    Unsupported,
    /// The kernel, or a tool, refuses what the object needs; the rest is programmed.
    Refused,
}

impl Reason {
    /// The name of the reason, in one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
            Self::Unsupported => "unsupported",
            Self::Refused => "refused",
        }
    }
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
    /// The largest number of problems kept for an object: a slice with a thousand bad addresses is
    /// one mistake, not a thousand.
    const MOST: usize = 8;

    /// Starts to collect values of `object` that its fields cannot have.
    pub(crate) fn new(object: ObjectKey) -> Self {
        Self::with(object, Reason::Invalid)
    }

    /// Starts to collect problems of `object` for this reason.
    pub(crate) fn with(object: ObjectKey, reason: Reason) -> Self {
        Self { object, reason, found: Vec::new() }
    }

    pub(crate) fn add(&mut self, field: impl Into<String>, message: impl fmt::Display) {
        if self.found.len() < Self::MOST {
            self.add_in_any_case(field, message);
        }
    }

    /// Adds a problem that is kept beside any number of others.
    pub(crate) fn add_in_any_case(&mut self, field: impl Into<String>, message: impl fmt::Display) {
        self.found.push(Problem {
            object: self.object.clone(),
            field: field.into(),
            message: message.to_string(),
            reason: self.reason,
        });
    }

    /// Returns the problems in the order in which they were added.
    pub(crate) fn into_vec(self) -> Vec<Problem> {
        self.found
    }
}
