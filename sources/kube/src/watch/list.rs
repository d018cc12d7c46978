//! The objects of a list that is not complete yet.

use switchyard_core::objects::{Event, Kind, Object, ObjectKey};
use tracing::error;

use super::decode::{DecodableObject, Fault, Item};

/// The objects of a kind that have arrived so far.
#[derive(Debug)]
pub(super) struct Collected {
    kind: Kind,
    objects: Vec<Object>,
    malformed: Vec<(ObjectKey, Fault)>,
}

impl Collected {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, objects: Vec::new(), malformed: Vec::new() }
    }

    /// Adds an object that is not in the list.
    pub(super) fn add<T: DecodableObject>(&mut self, item: Item<T>) {
        match (item.content, item.key) {
            (Ok(object), _) => self.objects.push(object),
            (Err(fault), Some(key)) => self.malformed.push((key, fault)),
            (Err(fault), None) => log_nameless(self.kind, &fault),
        }
    }

    /// Removes an object that was changed or deleted while the list was streamed.
    pub(super) fn remove<T: DecodableObject>(&mut self, item: &Item<T>) {
        let Some(key) = &item.key else { return };
        self.objects.retain(|object| object.key() != *key);
        self.malformed.retain(|(malformed, _)| malformed != key);
    }

    /// Returns the events of the complete list: one [`Event::Replace`], and one
    /// [`Event::Malformed`] for each malformed object.
    pub(super) fn into_events(self) -> impl Iterator<Item = Event> {
        let malformed = self.malformed.iter().map(|(key, _)| key.clone()).collect();
        let replace = Event::Replace { kind: self.kind, objects: self.objects, malformed };
        let faults = self.malformed.into_iter().map(|(key, fault)| malformed_event(key, fault));
        std::iter::once(replace).chain(faults)
    }

    /// The number of objects, malformed ones included.
    pub(super) fn len(&self) -> usize {
        self.objects.len() + self.malformed.len()
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
