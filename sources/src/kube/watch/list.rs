//! The objects of a list that is not complete yet.

use std::collections::BTreeMap;

use switchyard_core::objects::{Event, Kind, Object, ObjectKey};
use tracing::error;

use super::decode::{DecodableObject, Fault, Item};

/// A list that is not complete yet.
#[derive(Debug)]
pub(super) enum List {
    /// The objects were sent as they arrived.
    Sent,
    /// The objects are sent together, when the list is complete.
    Collected(Collected),
}

/// The objects of a kind that have arrived so far.
#[derive(Debug)]
pub(super) struct Collected {
    kind: Kind,
    objects: BTreeMap<ObjectKey, Result<Object, Fault>>,
}

impl Collected {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, objects: BTreeMap::new() }
    }

    /// Adds an object, or replaces the object with the same name.
    pub(super) fn add<T: DecodableObject>(&mut self, item: Item<T>) {
        match (item.key, item.content) {
            (Some(key), content) => drop(self.objects.insert(key, content)),
            (None, Ok(object)) => drop(self.objects.insert(object.key(), Ok(object))),
            (None, Err(fault)) => log_nameless(self.kind, &fault),
        }
    }

    /// Removes an object that was deleted while the list was streamed.
    pub(super) fn remove(&mut self, key: &ObjectKey) {
        self.objects.remove(key);
    }

    /// Returns the events of the complete list: one [`Event::Replace`], and one
    /// [`Event::Malformed`] for each malformed object.
    pub(super) fn into_events(self) -> impl Iterator<Item = Event> {
        let (mut objects, mut malformed, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for (key, content) in self.objects {
            match content {
                Ok(object) => objects.push(object),
                Err(fault) => {
                    malformed.push(key.clone());
                    faults.push(malformed_event(key, fault));
                }
            }
        }
        let replace = Event::Replace { kind: self.kind, objects, malformed };
        std::iter::once(replace).chain(faults)
    }
}

/// Returns the event for an object that cannot be decoded.
pub(super) fn malformed_event(object: ObjectKey, fault: Fault) -> Event {
    Event::Malformed { object, field: fault.field, message: fault.message }
}

/// Logs an object without a name, for which there is no event.
pub(super) fn log_nameless(kind: Kind, fault: &Fault) {
    error!(%kind, field = fault.field, message = fault.message, "Skipping an object without a name");
}
