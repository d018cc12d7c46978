//! What the files say together, and what changed of it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
};

use proxy_core::objects::{Event, Kind, Object, ObjectKey};

use super::{
    document::Content,
    problem::{Problem, Severity},
};

/// What one file contributes.
#[derive(Debug, Default)]
struct FileState {
    /// Its objects; for those that can no longer be decoded, the last good state.
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    /// Its objects that cannot be decoded.
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

/// An object as all files together have it.
#[derive(Default)]
struct Effective {
    object: Option<Arc<Object>>,
    fault: Option<Fault>,
}

/// Everything that is known about the manifests.
#[derive(Debug, Default)]
pub(super) struct Store {
    /// By path: the last one that holds an object decides.
    files: BTreeMap<PathBuf, FileState>,
    /// The files that hold an object.
    holders: HashMap<ObjectKey, BTreeSet<PathBuf>>,
    /// What was sent last.
    sent: BTreeMap<ObjectKey, Arc<Object>>,
    /// What was reported as malformed last.
    reported: BTreeMap<ObjectKey, Fault>,
}

impl Store {
    /// Takes in what changed files say now (`None`: the file is gone), and returns what changed.
    /// Problems with the files are passed on, those between files are added.
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

    /// One [`Event::Replace`] for every kind, and what is malformed.
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

    /// All objects that count, sorted by key.
    pub(super) fn into_objects(self) -> Vec<Object> {
        drop(self.files);
        self.sent.into_values().map(Arc::unwrap_or_clone).collect()
    }

    /// The changes between what was sent of these objects and what they are now: removals first.
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
                // It is there, but nothing is known of it: what was sent stays.
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

    /// The last file that holds the object decides. If it cannot be decoded there and has no
    /// earlier state, the file before steps in.
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

    /// A warning, if more than one file holds the object.
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
            ..Problem::of_file(last, format!("is also in {}; this one counts", others.join(", ")))
        })
    }
}

/// What a file contributes after it was read again.
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
                ..Problem::of_file(path, "is in this file more than once; the last one counts")
            });
        }
        // Unchanged objects stay where they are in memory.
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
