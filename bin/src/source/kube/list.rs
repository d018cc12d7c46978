//! A list while it is collected.

use proxy_core::objects::{Event, Kind, Object, ObjectKey};
use tracing::error;

use super::decode::{Fault, Item, Lean};

/// All objects of a kind, as far as they have come.
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

    /// Takes an object that is not there yet.
    pub(super) fn add<T: Lean>(&mut self, item: Item<T>) {
        match (item.content, item.key) {
            (Ok(object), _) => self.objects.push(object),
            (Err(fault), Some(key)) => self.malformed.push((key, fault)),
            (Err(fault), None) => report_nameless(self.kind, &fault),
        }
    }

    /// Removes an object that changed or went while the list was streamed.
    pub(super) fn remove<T: Lean>(&mut self, item: &Item<T>) {
        let Some(key) = &item.key else { return };
        self.objects.retain(|object| object.key() != *key);
        self.malformed.retain(|(malformed, _)| malformed != key);
    }

    /// What to send when the list is complete: one [`Event::Replace`], and what is malformed.
    pub(super) fn into_events(self) -> impl Iterator<Item = Event> {
        let malformed = self.malformed.iter().map(|(key, _)| key.clone()).collect();
        let replace = Event::Replace { kind: self.kind, objects: self.objects, malformed };
        let faults = self.malformed.into_iter().map(|(key, fault)| malformed_event(key, fault));
        std::iter::once(replace).chain(faults)
    }

    /// How many objects there are.
    pub(super) fn len(&self) -> usize {
        self.objects.len() + self.malformed.len()
    }
}

/// The event for an object that cannot be decoded.
pub(super) fn malformed_event(object: ObjectKey, fault: Fault) -> Event {
    Event::Malformed { object, field: fault.field, message: fault.message }
}

/// There is no event for an object without a name.
pub(super) fn report_nameless(kind: Kind, fault: &Fault) {
    error!(%kind, field = fault.field, message = fault.message, "object without a name is passed over");
}
