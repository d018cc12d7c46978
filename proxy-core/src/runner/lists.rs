//! Lists of many objects, which are applied in parts.
//!
//! A part is applied and synced like single changes of its objects, and so is what arrives between
//! two parts. What arrives is newer than a list: the objects that it is about are taken out of
//! what is left of the list.
//!
//! No Service may lose between two parts what it has before and after the list. So all slices of a
//! Service are in one part, also those that are gone, and what arrives about a slice comes with the
//! rest of its part of the list. A list is not divided if it moves a slice from one Service to
//! another, or hands an address or port on.

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
    track::Tracker,
};

/// The lists that are not applied whole yet.
#[derive(Debug, Default)]
pub(super) struct Lists(VecDeque<List>);

#[derive(Debug)]
struct List {
    kind: Kind,
    arrived: Instant,
    /// The changes that are not applied yet: objects, and removals of objects.
    changes: Vec<Option<Event>>,
    /// The places of changes, whether or not they are applied.
    places: HashMap<ObjectKey, usize>,
    /// The places of the changes of each part that is not applied yet.
    parts: VecDeque<Vec<usize>>,
    /// The places of the changes of slices by their Service.
    slices: HashMap<ServiceName, Vec<usize>>,
}

/// Some changes of a list that arrived then.
struct Part {
    arrived: Instant,
    events: Vec<Event>,
}

impl List {
    /// The changes to objects, with their places.
    fn new(kind: Kind, objects: Vec<Object>, arrived: Instant) -> Self {
        let mut changes: Vec<_> = objects.into_iter().map(|it| Some(Event::Apply(it))).collect();
        let mut places = HashMap::with_capacity(changes.len());
        for place in 0..changes.len() {
            let Some(Event::Apply(object)) = &changes[place] else { continue };
            // The last one of the same name counts.
            if let Some(earlier) = places.insert(object.key(), place) {
                changes[earlier] = None;
            }
        }
        let (parts, slices) = Default::default();
        Self { kind, arrived, changes, places, parts, slices }
    }

    /// Adds the removal of an object that the list lacks.
    fn remove(&mut self, key: ObjectKey) {
        self.places.insert(key.clone(), self.changes.len());
        self.changes.push(Some(Event::Delete(key)));
    }

    /// Whether the list may be divided: no Service gets by it what is another's now.
    fn is_divisible(&self, tracker: &Tracker) -> bool {
        self.changes.iter().flatten().all(|change| match change {
            Event::Apply(Object::Service(service)) => !tracker.names_what_another_has(service),
            Event::Apply(object @ Object::EndpointSlice(_)) => {
                let owner = tracker.owner(&object.key());
                owner.is_none_or(|owner| Some(owner) == service_of_slice(object).as_ref())
            }
            _ => true,
        })
    }

    /// Divides the changes into parts of so many, or more if a Service has more.
    fn divide(&mut self, most: usize, tracker: &Tracker) {
        let service = |change: &Option<Event>| match change.as_ref()? {
            Event::Apply(object) => service_of_slice(object),
            Event::Delete(key) => tracker.owner(key).cloned(),
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
        for (place, service) in services.into_iter().enumerate() {
            if let Some(service) = service {
                self.slices.entry(service).or_default().push(place);
            }
        }
    }

    /// Takes out the change of an object.
    fn take(&mut self, key: &ObjectKey) -> Option<Event> {
        self.places.remove(key).and_then(|place| self.changes[place].take())
    }

    /// Takes out the changes of a Service's slices.
    fn take_slices(&mut self, service: &ServiceName) -> impl Iterator<Item = Event> {
        let places = self.slices.remove(service).unwrap_or_default();
        places.into_iter().filter_map(|place| self.changes[place].take())
    }

    /// Takes out all changes.
    fn take_all(&mut self) -> impl Iterator<Item = Event> {
        self.changes.iter_mut().filter_map(Option::take)
    }
}

fn service_of_slice(object: &Object) -> Option<ServiceName> {
    let Object::EndpointSlice(slice) = object else { return None };
    service_of(slice).map(|service| ServiceName::new(&object.key().namespace, service))
}

impl Lists {
    /// Takes out what an event that is about to be applied makes obsolete. Returns the changes that
    /// are to be applied before the event.
    fn overtake(&mut self, event: &Event, tracker: &Tracker) -> Vec<Event> {
        if self.is_empty() {
            return Vec::new();
        }
        // The last good state of an object that is malformed now is that of the list.
        let (key, stays) = match event {
            Event::Apply(object) => (object.key(), false),
            Event::Delete(key) => (key.clone(), false),
            Event::Malformed { object, .. } => (object.clone(), true),
            Event::Replace { kind, malformed, .. } => {
                let of_kind = self.0.iter_mut().filter(|list| list.kind == *kind);
                let earlier = of_kind
                    .flat_map(|list| malformed.iter().filter_map(|key| list.take(key)))
                    .collect();
                self.0.retain(|list| list.kind != *kind);
                return earlier;
            }
            Event::Listed(_) => return Vec::new(),
        };
        let Some(list) = self.0.iter_mut().find(|list| list.kind == key.kind) else {
            return Vec::new();
        };
        let mut earlier: Vec<_> = list.take(&key).filter(|_| stays).into_iter().collect();
        let after = match (event, earlier.first()) {
            (Event::Apply(object), _) | (_, Some(Event::Apply(object))) => Some(object),
            _ => None,
        };
        if matches!(after, Some(Object::Service(service)) if tracker.names_what_another_has(service))
        {
            earlier.extend(list.take_all());
            return earlier;
        }
        let services = [tracker.owner(&key).cloned(), after.and_then(service_of_slice)];
        for service in services.into_iter().flatten() {
            earlier.extend(list.take_slices(&service));
        }
        earlier
    }

    /// Takes a part of the oldest list, and with the last one that the list ends.
    fn next(&mut self) -> Option<Part> {
        let list = self.0.front_mut()?;
        let places = list.parts.pop_front().unwrap_or_default();
        let changes = places.into_iter().filter_map(|place| list.changes[place].take());
        let mut events: Vec<_> = changes.collect();
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
        for earlier in self.lists.overtake(&event, &self.tracker) {
            self.apply_event(earlier);
        }
        match event {
            Event::Replace { kind, objects, malformed }
                if self.tracker.transition().before().is_some()
                    && objects.len().max(self.tracker.count(kind)) > self.most_listed =>
            {
                let mut list = List::new(kind, objects, arrived);
                let malformed: HashSet<_> = malformed.into_iter().collect();
                let is_listed = |key: &_| list.places.contains_key(key) || malformed.contains(key);
                let gone = self.tracker.unlisted(kind, is_listed);
                gone.into_iter().for_each(|key| list.remove(key));
                if list.is_divisible(&self.tracker) {
                    list.divide(self.most_listed, &self.tracker);
                    self.lists.0.push_back(list);
                } else {
                    list.take_all().for_each(|change| self.apply_event(change));
                    self.apply_event(Event::Listed(kind));
                }
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
        }
    }
}
