//! The problems that have been reported already.

use crate::{
    model::{HashMap, HashSet},
    objects::{Kind, ObjectKey},
    parsed::problem::Problem,
};

/// The problems that objects have now. A problem is reported once, and again only after it went
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

    /// All problems, in any order.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Problem> {
        self.known.values().flatten()
    }

    /// The problems of an object, in any order.
    pub(crate) fn of(&self, object: &ObjectKey) -> impl Iterator<Item = &Problem> {
        self.known.get(object).into_iter().flatten()
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
