//! The objects of all files together, and their changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
};

use switchyard_core::objects::{Event, Kind, Object, ObjectKey};

use super::{
    document::Content,
    problem::{Problem, Severity},
};

#[derive(Debug, Default)]
struct FileState {
    /// The objects of the file; the last good state of objects that can no longer be decoded.
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    /// The objects of the file that cannot be decoded.
    malformed: BTreeMap<ObjectKey, Fault>,
}

impl FileState {
    fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.objects.keys().chain(self.malformed.keys())
    }
}

/// Why an object cannot be decoded.
#[derive(Clone, Debug, PartialEq)]
struct Fault {
    field: String,
    message: String,
}

/// The state of an object that results from all files.
#[derive(Default)]
struct Effective {
    object: Option<Arc<Object>>,
    fault: Option<Fault>,
}

#[derive(Debug, Default)]
pub(super) struct Store {
    /// The files by path: the last file that holds an object decides.
    files: BTreeMap<PathBuf, FileState>,
    holders: HashMap<ObjectKey, BTreeSet<PathBuf>>,
    /// The objects as they were sent last.
    sent: BTreeMap<ObjectKey, Arc<Object>>,
    /// The objects that were last reported as malformed.
    reported: BTreeMap<ObjectKey, Fault>,
}

impl Store {
    /// Replaces the content of changed files (`None`: the file was removed) and returns the changes
    /// of objects, the problems of the files and the problems between files.
    pub(super) fn update(
        &mut self,
        changes: Vec<(PathBuf, Option<Content>)>,
    ) -> (Vec<Event>, Vec<Problem>) {
        let mut problems = Vec::new();
        let mut touched = BTreeSet::new();
        let mut newly_held = BTreeSet::new();
        for (path, content) in changes {
            let before = self.files.remove(&path).unwrap_or_default();
            touched.extend(before.keys().cloned());
            for key in before.keys() {
                if let Some(holders) = self.holders.get_mut(key) {
                    holders.remove(&path);
                }
            }
            let Some(content) = content else { continue };
            problems.extend(content.problems.iter().cloned());
            let after = merge(&path, &before, content, &mut problems);
            touched.extend(after.keys().cloned());
            for key in after.keys() {
                self.holders.entry(key.clone()).or_default().insert(path.clone());
                if !before.objects.contains_key(key) && !before.malformed.contains_key(key) {
                    newly_held.insert(key.clone());
                }
            }
            self.files.insert(path, after);
        }
        for key in &newly_held {
            problems.extend(self.duplicate(key));
        }
        (self.difference(touched), problems)
    }

    /// Returns one [`Event::Replace`] for every kind, and one [`Event::Malformed`] for each
    /// malformed object.
    pub(super) fn everything(&self) -> Vec<Event> {
        let of_kind = |kind: Kind| Event::Replace {
            kind,
            objects: self
                .sent
                .iter()
                .filter(|(key, _)| key.kind == kind)
                .map(|(_, object)| Object::clone(object))
                .collect(),
            malformed: self
                .reported
                .keys()
                .filter(|key| key.kind == kind && !self.sent.contains_key(key))
                .cloned()
                .collect(),
        };
        let malformed = self.reported.iter().map(|(key, fault)| malformed(key, fault));
        Kind::ALL.into_iter().map(of_kind).chain(malformed).collect()
    }

    /// Returns all objects that count, sorted by key.
    pub(super) fn into_objects(self) -> Vec<Object> {
        drop(self.files);
        self.sent.into_values().map(Arc::unwrap_or_clone).collect()
    }

    /// Returns the changes of these objects since they were sent, deletions first.
    fn difference(&mut self, touched: BTreeSet<ObjectKey>) -> Vec<Event> {
        let (mut deletes, mut applies, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for key in touched {
            let Effective { object, fault } = self.effective(&key);
            let was_reported = self.reported.contains_key(&key);
            match object {
                Some(object) => {
                    let is_new = !self
                        .sent
                        .get(&key)
                        .is_some_and(|sent| Arc::ptr_eq(sent, &object) || *sent == object);
                    if is_new || (was_reported && fault.is_none()) {
                        applies.push(Event::Apply(Object::clone(&object)));
                    }
                    self.sent.insert(key.clone(), object);
                }
                // A file holds the object but never held a good state: what was sent stays.
                None if fault.is_some() => (),
                None => {
                    self.holders.remove(&key);
                    if self.sent.remove(&key).is_some() || was_reported {
                        deletes.push(Event::Delete(key.clone()));
                    }
                }
            }
            match fault {
                Some(fault) => {
                    if self.reported.get(&key) != Some(&fault) {
                        faults.push(malformed(&key, &fault));
                        self.reported.insert(key, fault);
                    }
                }
                None => {
                    self.reported.remove(&key);
                }
            }
        }
        deletes.into_iter().chain(applies).chain(faults).collect()
    }

    /// Returns the state of an object. The last file that holds the object decides; if that file
    /// never held a good state, the file before it counts.
    fn effective(&self, key: &ObjectKey) -> Effective {
        let mut effective = Effective::default();
        let holders = self.holders.get(key).into_iter().flatten();
        for (rank, path) in holders.rev().enumerate() {
            let Some(file) = self.files.get(path) else { continue };
            if rank == 0 {
                effective.fault = file.malformed.get(key).cloned();
            }
            if let Some(object) = file.objects.get(key) {
                effective.object = Some(object.clone());
                break;
            }
        }
        effective
    }

    /// Returns a warning if more than one file holds the object.
    fn duplicate(&self, key: &ObjectKey) -> Option<Problem> {
        let holders = self.holders.get(key)?;
        let last = holders.last()?;
        if holders.len() < 2 {
            return None;
        }
        let others: Vec<_> =
            holders.iter().filter(|path| *path != last).map(|p| p.display().to_string()).collect();
        Some(Problem {
            severity: Severity::Warning,
            object: Some(key.clone()),
            ..Problem::with_file(
                last,
                format!("is also in {}; this file counts", others.join(", ")),
            )
        })
    }
}

/// Returns the objects of a file after it was read again.
fn merge(
    path: &Path,
    before: &FileState,
    content: Content,
    problems: &mut Vec<Problem>,
) -> FileState {
    let mut after = FileState::default();
    for object in content.objects {
        let key = object.key();
        if after.objects.contains_key(&key) {
            problems.push(Problem {
                severity: Severity::Warning,
                object: Some(key.clone()),
                ..Problem::with_file(
                    path,
                    "is in this file more than once; the last definition counts",
                )
            });
        }
        // Unchanged objects are not copied.
        let object = match before.objects.get(&key) {
            Some(same) if **same == object => same.clone(),
            _ => Arc::new(object),
        };
        after.objects.insert(key, object);
    }
    for problem in &content.problems {
        let (Severity::Error, Some(key)) = (problem.severity, &problem.object) else { continue };
        if let Some(object) = before.objects.get(key) {
            after.objects.entry(key.clone()).or_insert_with(|| object.clone());
        }
        let fault = Fault {
            field: problem.field.clone(),
            message: format!("{}: {}", problem.place(), problem.message),
        };
        after.malformed.insert(key.clone(), fault);
    }
    if content.has_unknown {
        for (key, fault) in &before.malformed {
            if !after.objects.contains_key(key) {
                after.malformed.entry(key.clone()).or_insert_with(|| fault.clone());
            }
        }
        for (key, object) in &before.objects {
            after.objects.entry(key.clone()).or_insert_with(|| object.clone());
        }
    }
    after
}

fn malformed(key: &ObjectKey, fault: &Fault) -> Event {
    Event::Malformed {
        object: key.clone(),
        field: fault.field.clone(),
        message: fault.message.clone(),
    }
}

#[cfg(test)]
mod tests;
