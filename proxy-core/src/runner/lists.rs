//! Lists of many objects, which are applied in parts.
//!
//! A part is applied and synced like single changes of its objects, and so is what arrives between
//! two parts. What arrives is newer than a list: the objects that it is about are taken out of
//! what is left of the list.
//!
//! All slices of a Service are in one part, also those that are gone: otherwise it would be without
//! endpoints between the removal of its last slice and the part with the new one. Services that are
//! gone come last, so that an address or port that another Service has taken over is served by one
//! of the two at all times.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    mem,
};

use tokio::time::Instant;

use super::Runner;
use crate::{
    model::ServiceName,
    objects::{Event, Kind, Object, ObjectKey},
    parsed::slice::service_of,
};

/// The lists that are not applied whole yet.
#[derive(Debug, Default)]
pub(super) struct Lists(VecDeque<List>);

#[derive(Debug)]
struct List {
    kind: Kind,
    arrived: Instant,
    /// The changes that are not applied yet.
    changes: Vec<Option<Change>>,
    /// The places of changes, whether or not they are applied.
    places: HashMap<ObjectKey, usize>,
    /// The places of the changes of each part that is not applied yet.
    parts: VecDeque<Vec<usize>>,
}

/// A change that a list asks for.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most are objects")]
enum Change {
    Apply(Object),
    Delete(ObjectKey),
}

impl From<Change> for Event {
    fn from(change: Change) -> Self {
        match change {
            Change::Apply(object) => Self::Apply(object),
            Change::Delete(key) => Self::Delete(key),
        }
    }
}

/// Some changes of a list that arrived then.
struct Part {
    arrived: Instant,
    events: Vec<Event>,
}

impl List {
    /// The changes to objects, with their places.
    fn new(kind: Kind, objects: Vec<Object>, arrived: Instant) -> Self {
        let mut changes: Vec<_> = objects.into_iter().map(|it| Some(Change::Apply(it))).collect();
        let mut places = HashMap::with_capacity(changes.len());
        for place in 0..changes.len() {
            let Some(Change::Apply(object)) = &changes[place] else { continue };
            // The last one of the same name counts.
            if let Some(earlier) = places.insert(object.key(), place) {
                changes[earlier] = None;
            }
        }
        Self { kind, arrived, changes, places, parts: VecDeque::new() }
    }

    /// Adds the removal of an object that the list lacks.
    fn remove(&mut self, key: ObjectKey) {
        self.places.insert(key.clone(), self.changes.len());
        self.changes.push(Some(Change::Delete(key)));
    }

    /// Divides the changes into parts of so many, or more if a Service has more.
    fn divide<'a>(&mut self, most: usize, owner: impl Fn(&ObjectKey) -> Option<&'a ServiceName>) {
        let service = |change: &Option<Change>| match change {
            Some(Change::Apply(Object::EndpointSlice(slice))) => {
                let namespace = ObjectKey::new(Kind::EndpointSlice, &slice.metadata).namespace;
                service_of(slice).map(|service| ServiceName::new(&namespace, service))
            }
            Some(Change::Delete(key)) => owner(key).cloned(),
            _ => None,
        };
        let services: Vec<_> = self.changes.iter().map(service).collect();
        let mut order: Vec<usize> = (0..self.changes.len()).collect();
        // Stable: what is of no Service stays in the order of the list, with removals last.
        order.sort_by(|a, b| services[*a].cmp(&services[*b]));
        let mut part = Vec::new();
        for place in order {
            let ends = part.last().is_some_and(|last: &usize| {
                part.len() >= most
                    && (services[place].is_none() || services[*last] != services[place])
            });
            if ends {
                self.parts.push_back(mem::take(&mut part));
            }
            part.push(place);
        }
        self.parts.push_back(part);
    }
}

impl Lists {
    /// Takes out what an event that is about to be applied makes obsolete. Returns a change that is
    /// to be applied before the event.
    fn overtake(&mut self, event: &Event) -> Option<Event> {
        if self.is_empty() {
            return None;
        }
        let (key, stays) = match event {
            Event::Apply(object) => (object.key(), false),
            Event::Delete(key) => (key.clone(), false),
            // The last good state is that of the list.
            Event::Malformed { object, .. } => (object.clone(), true),
            Event::Replace { kind, .. } => {
                self.0.retain(|list| list.kind != *kind);
                return None;
            }
            Event::Listed(_) => return None,
        };
        let list = self.0.iter_mut().find(|list| list.kind == key.kind)?;
        let change = list.places.remove(&key).and_then(|place| list.changes[place].take());
        change.filter(|_| stays).map(Event::from)
    }

    /// Takes a part of the oldest list, and with the last one that the list ends.
    fn next(&mut self) -> Option<Part> {
        let list = self.0.front_mut()?;
        let places = list.parts.pop_front().unwrap_or_default();
        let changes = places.into_iter().filter_map(|place| list.changes[place].take());
        let mut events: Vec<_> = changes.map(Event::from).collect();
        let arrived = list.arrived;
        if list.parts.is_empty() {
            events.push(Event::Listed(list.kind));
            self.0.pop_front();
        }
        Some(Part { arrived, events })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Runner {
    /// Applies an event, but for a long list, which is kept to be applied in parts. Nothing is
    /// divided before the first sync, which is one of everything.
    pub(super) fn divide(&mut self, event: Event, arrived: Instant) {
        if let Some(earlier) = self.lists.overtake(&event) {
            self.apply_event(earlier);
        }
        match event {
            Event::Replace { kind, objects, malformed }
                if objects.len() > self.most_listed
                    && self.tracker.transition().before().is_some() =>
            {
                let mut list = List::new(kind, objects, arrived);
                let malformed: HashSet<_> = malformed.into_iter().collect();
                let is_listed = |key: &_| list.places.contains_key(key) || malformed.contains(key);
                let gone = self.tracker.unlisted(kind, is_listed);
                gone.into_iter().for_each(|key| list.remove(key));
                list.divide(self.most_listed, |key| self.tracker.owner(key));
                self.lists.0.push_back(list);
            }
            event => self.apply_event(event),
        }
    }

    /// Whether the next part of a list is to be applied now: what came before is synced, or cannot
    /// be synced, perhaps for want of what the list has.
    pub(super) fn continues_list(&self) -> bool {
        !self.lists.is_empty()
            && (self.tracker.transition().is_empty() || self.retries.due().is_some())
    }

    /// Whether there is something to do at once because of a list.
    pub(super) fn is_busy(&self) -> bool {
        let is_sync_due = || self.sync_due().is_some_and(|due| due <= Instant::now());
        !self.lists.is_empty() && (self.continues_list() || is_sync_due())
    }

    /// Applies the next part of a list, if it is time.
    pub(super) fn apply_part(&mut self) {
        if self.continues_list()
            && let Some(Part { arrived, events }) = self.lists.next()
        {
            self.apply_changes(arrived, |runner| {
                events.into_iter().for_each(|event| runner.apply_event(event));
            });
            // Observers learn by a sync that the list is done.
            if self.lists.is_empty() && !self.parts_took.is_zero() {
                self.oldest_change.get_or_insert(arrived);
            }
        }
    }
}
