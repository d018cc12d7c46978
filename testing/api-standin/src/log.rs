//! The log of changes to one resource.

use std::{collections::VecDeque, sync::Arc};

use serde_json::Value;

use crate::selector::Selector;

/// Namespace and name.
pub(crate) type Key = (String, String);

/// An object at one version, shared by the log and the watches.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) value: Arc<Value>,
}

impl Stored {
    /// Returns the object with another resource version: a watch reports the last state of a
    /// deleted object with the version of the deletion.
    fn at(&self, version: u64) -> Self {
        let mut value = Value::clone(&self.value);
        value["metadata"]["resourceVersion"] = version.to_string().into();
        Self { value: Arc::new(value) }
    }
}

/// The type of a watch event, and its object.
pub(crate) type WatchEvent = (&'static str, Stored);

#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) key: Key,
    pub(crate) before: Option<Stored>,
    pub(crate) after: Option<Stored>,
}

impl Change {
    /// Returns the event of the change for a watch with this selector: an object that enters the
    /// selection is added, and an object that leaves the selection is deleted.
    pub(crate) fn event(&self, selector: &Selector) -> Option<WatchEvent> {
        let selected = |object: &Option<Stored>| {
            object.as_ref().filter(|object| selector.matches(&object.value)).cloned()
        };
        match (selected(&self.before), selected(&self.after)) {
            (None, None) => None,
            (None, Some(after)) => Some(("ADDED", after)),
            (Some(_), Some(after)) => Some(("MODIFIED", after)),
            (Some(before), None) => Some(("DELETED", before.at(self.version))),
        }
    }
}

/// The changes of a resource.
#[derive(Debug, Default)]
pub(crate) struct Log {
    changes: VecDeque<Change>,
    /// The newest version that a watch can no longer start from.
    forgotten: u64,
    /// The version of the newest change that was removed from `changes`.
    dropped: u64,
}

/// The log does not reach back to the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expired {
    /// The oldest version that could be asked for.
    pub(crate) oldest: u64,
}

impl Log {
    pub(crate) fn push(&mut self, change: Change) {
        self.changes.push_back(change);
    }

    /// Forgets everything up to and including `version`.
    pub(crate) fn forget(&mut self, version: u64) {
        while self.changes.front().is_some_and(|change| change.version <= version) {
            self.dropped = self.changes.pop_front().map_or(self.dropped, |change| change.version);
        }
        self.forgotten = self.forgotten.max(version);
    }

    /// Forgets all changes and versions.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Returns the changes after `version`, oldest first, for a request with that version.
    pub(crate) fn since(&self, version: u64) -> Result<impl Iterator<Item = &Change>, Expired> {
        if version < self.forgotten {
            return Err(Expired { oldest: self.forgotten });
        }
        self.after(version)
    }

    /// Returns the changes after `version`, oldest first, for a watch that is open. Such a watch
    /// has expired only if it missed a change.
    pub(crate) fn after(&self, version: u64) -> Result<impl Iterator<Item = &Change>, Expired> {
        if version < self.dropped {
            return Err(Expired { oldest: self.forgotten });
        }
        let start = self.changes.partition_point(|change| change.version <= version);
        Ok(self.changes.range(start..))
    }
}
