//! Lists of many objects, which are applied in parts.
//!
//! A part is applied and synced like single changes of its objects, and so is what arrives between
//! two parts. What arrives is newer than a list: the objects that it is about are taken out of
//! what is left of the list.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    mem,
};

use tokio::time::Instant;

use super::Runner;
use crate::objects::{Event, Kind, Object, ObjectKey};

/// The lists that are not applied whole yet.
#[derive(Debug, Default)]
pub(super) struct Lists(VecDeque<List>);

#[derive(Debug)]
struct List {
    kind: Kind,
    arrived: Instant,
    objects: Vec<Option<Object>>,
    /// The places of the objects, whether or not they are applied.
    places: HashMap<ObjectKey, usize>,
    /// The first place that is not applied yet.
    next: usize,
}

/// Some objects of a list that arrived then.
struct Part {
    arrived: Instant,
    events: Vec<Event>,
}

impl Lists {
    /// Adds a list, which replaces an earlier one of the same kind.
    fn add(&mut self, kind: Kind, objects: Vec<Object>, arrived: Instant) {
        self.0.retain(|list| list.kind != kind);
        let mut objects: Vec<_> = objects.into_iter().map(Some).collect();
        let mut places = HashMap::with_capacity(objects.len());
        for place in 0..objects.len() {
            let Some(object) = &objects[place] else { continue };
            // The last one of the same name counts.
            if let Some(earlier) = places.insert(object.key(), place) {
                objects[earlier] = None;
            }
        }
        self.0.push_back(List { kind, arrived, objects, places, next: 0 });
    }

    /// Whether the list that was added last has an object.
    fn names(&self, key: &ObjectKey) -> bool {
        self.0.back().is_some_and(|list| list.places.contains_key(key))
    }

    /// Takes out what an event that is about to be applied makes obsolete. Returns an object that
    /// is to be applied before the event.
    fn overtake(&mut self, event: &Event) -> Option<Object> {
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
        let object = list.places.remove(&key).and_then(|place| list.objects[place].take());
        object.filter(|_| stays)
    }

    /// Takes so many objects of the oldest list, and with the last ones that the list ends.
    fn next(&mut self, most: usize) -> Option<Part> {
        let list = self.0.front_mut()?;
        let end = list.next.saturating_add(most).min(list.objects.len());
        let objects = list.objects[list.next..end].iter_mut().filter_map(mem::take);
        let mut events: Vec<_> = objects.map(Event::Apply).collect();
        list.next = end;
        let arrived = list.arrived;
        if end == list.objects.len() {
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
    /// Applies an event, but for a long list, of which only the removals are applied now. Nothing
    /// is divided before the first sync, which is one of everything.
    pub(super) fn divide(&mut self, event: Event, arrived: Instant) {
        if let Some(object) = self.lists.overtake(&event) {
            self.apply_event(Event::Apply(object));
        }
        match event {
            Event::Replace { kind, objects, malformed }
                if objects.len() > self.most_listed
                    && self.tracker.transition().before().is_some() =>
            {
                self.lists.add(kind, objects, arrived);
                let malformed: HashSet<_> = malformed.into_iter().collect();
                let is_listed = |key: &_| self.lists.names(key) || malformed.contains(key);
                self.tracker.remove_unlisted(kind, is_listed);
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
            && let Some(Part { arrived, events }) = self.lists.next(self.most_listed)
        {
            self.apply_changes(arrived, |runner| {
                events.into_iter().for_each(|event| runner.apply_event(event));
            });
        }
    }
}
