//! The objects, with one growing resource version.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;
use tokio::sync::watch;

use crate::{
    log::{Change, Expired, Key, Log, Stored, WatchEvent},
    resource::Resource,
    selector::Selector,
};

/// The objects that the stand-in serves. Clones share them.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Mutex<Inner>>,
    version: watch::Sender<u64>,
}

#[derive(Debug)]
struct Inner {
    version: u64,
    tables: BTreeMap<Resource, Table>,
}

#[derive(Debug, Default)]
struct Table {
    objects: BTreeMap<Key, Stored>,
    log: Log,
}

/// All objects at one version.
#[derive(Clone, Debug)]
pub struct Backup {
    version: u64,
    objects: BTreeMap<Resource, BTreeMap<Key, Stored>>,
}

impl Backup {
    pub fn objects(&self, resource: Resource) -> impl Iterator<Item = &Value> {
        let objects = self.objects.get(&resource).into_iter().flat_map(BTreeMap::values);
        objects.map(|stored| &*stored.value)
    }
}

/// All objects of a resource at one version.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) version: u64,
    pub(crate) objects: BTreeMap<Key, Stored>,
}

impl Default for Store {
    /// An empty store, whose version is 1.
    fn default() -> Self {
        let inner = Inner { version: 1, tables: BTreeMap::new() };
        Self { inner: Arc::new(Mutex::new(inner)), version: watch::Sender::new(1) }
    }
}

impl Store {
    /// Creates an object, or replaces the one of the same name. Nothing is validated. Returns its
    /// resource version.
    pub fn apply(&self, object: Value) -> u64 {
        let (resource, namespace, name) = Self::identity(&object);
        self.apply_as(resource, &namespace, &name, object)
    }

    /// The resource, the namespace (empty for objects of the cluster) and the name of an object.
    pub(crate) fn identity(object: &Value) -> (Resource, String, String) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let Some(resource) = Resource::of(&api_version, &kind) else {
            panic!("`{kind}` in `{api_version}` is not served")
        };
        let name = text(&object["metadata"]["name"]);
        assert!(!name.is_empty(), "the object has no name: {object}");
        let namespace = match (resource.is_namespaced(), &object["metadata"]["namespace"]) {
            (false, _) => "",
            (true, Value::String(namespace)) => namespace,
            (true, _) => "default",
        };
        (resource, namespace.to_owned(), name)
    }

    /// Does the same as [`Store::apply`] under the given resource, namespace and name, whatever the
    /// object's own fields: for objects that no client can decode.
    pub fn apply_as(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        mut object: Value,
    ) -> u64 {
        let mut inner = self.lock();
        let version = inner.version + 1;
        let metadata = object["metadata"].as_object_mut().expect("metadata");
        metadata.insert("resourceVersion".to_owned(), version.to_string().into());
        if resource.is_namespaced() {
            metadata.entry("namespace").or_insert_with(|| namespace.into());
        }
        metadata.entry("uid").or_insert_with(|| format!("uid-{version}").into());
        inner.change(
            resource,
            (namespace.to_owned(), name.to_owned()),
            Some(Stored { value: Arc::new(object) }),
        );
        self.announce(inner);
        version
    }

    /// Deletes an object and returns whether it existed. `namespace` is empty for cluster-scoped
    /// objects.
    pub fn delete(&self, resource: Resource, namespace: &str, name: &str) -> bool {
        let mut inner = self.lock();
        let key = (namespace.to_owned(), name.to_owned());
        let was_there = inner.table(resource).objects.contains_key(&key);
        if was_there {
            inner.change(resource, key, None);
            self.announce(inner);
        }
        was_there
    }

    /// Returns the object as clients receive it.
    pub fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Value> {
        let key = (namespace.to_owned(), name.to_owned());
        self.lock().table(resource).objects.get(&key).map(|stored| Value::clone(&stored.value))
    }

    /// The newest resource version.
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    /// Forgets all changes so far, as compaction does: a client that comes back with an earlier
    /// version gets 410. The version grows by one, so that every version a client can know is too
    /// old. Open watches that are up to date go on.
    pub fn expire_log(&self) {
        let mut inner = self.lock();
        inner.version += 1;
        let version = inner.version;
        for table in inner.tables.values_mut() {
            table.log.forget(version);
        }
    }

    /// Starts the version again at 1, as after etcd was restored from a backup: the objects stay,
    /// and the log is empty. Open watches find no changes until their version is passed.
    pub fn restore(&self) {
        let mut inner = self.lock();
        inner.version = 1;
        for table in inner.tables.values_mut() {
            table.log.restart();
        }
    }

    /// Returns a copy of all objects.
    pub fn backup(&self) -> Backup {
        let inner = self.lock();
        let tables = inner.tables.iter();
        let objects = tables.map(|(resource, table)| (*resource, table.objects.clone()));
        Backup { version: inner.version, objects: objects.collect() }
    }

    /// Brings back the objects of a backup. The version is that of the backup, too, or, with
    /// `is_bumped`, above all that clients know, which must then list again. Open watches notice
    /// nothing.
    pub fn restore_from(&self, backup: &Backup, is_bumped: bool) {
        let mut inner = self.lock();
        inner.version = if is_bumped { inner.version + 1000 } else { backup.version };
        let version = inner.version;
        for resource in Resource::ALL {
            let table = inner.table(resource);
            table.objects = backup.objects.get(&resource).cloned().unwrap_or_default();
            table.log.restart();
            // A server that starts knows no earlier changes.
            table.log.forget(version);
        }
    }

    /// Returns a channel with the newest version.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// All objects of the resource as they are now, or as they were at `version`.
    pub(crate) fn snapshot(
        &self,
        resource: Resource,
        version: Option<u64>,
    ) -> Result<Snapshot, Expired> {
        let mut inner = self.lock();
        let newest = inner.version;
        let table = inner.table(resource);
        let mut objects = table.objects.clone();
        let version = version.unwrap_or(newest);
        if version < newest {
            // Newest first, so that what stays is the state before the oldest change.
            for change in table.log.since(version)?.collect::<Vec<_>>().into_iter().rev() {
                match &change.before {
                    Some(before) => objects.insert(change.key.clone(), before.clone()),
                    None => objects.remove(&change.key),
                };
            }
        }
        Ok(Snapshot { version, objects })
    }

    /// Whether a watch can start from `version`.
    pub(crate) fn check(&self, resource: Resource, version: u64) -> Result<(), Expired> {
        self.lock().table(resource).log.since(version).map(|_| ())
    }

    /// Returns the events after `version` for an open watch, and the version that they lead to.
    pub(crate) fn events(
        &self,
        resource: Resource,
        version: u64,
        selector: &Selector,
    ) -> Result<(Vec<WatchEvent>, u64), Expired> {
        let mut inner = self.lock();
        let newest = inner.version;
        let changes = inner.table(resource).log.after(version)?;
        Ok((changes.filter_map(|change| change.event(selector)).collect(), newest))
    }

    fn announce(&self, inner: MutexGuard<'_, Inner>) {
        let version = inner.version;
        drop(inner);
        self.version.send_replace(version);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete when the lock is dropped: a panic elsewhere spoils nothing.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn table(&mut self, resource: Resource) -> &mut Table {
        self.tables.entry(resource).or_default()
    }

    fn change(&mut self, resource: Resource, key: Key, after: Option<Stored>) {
        self.version += 1;
        let version = self.version;
        let table = self.table(resource);
        let before = match &after {
            Some(after) => table.objects.insert(key.clone(), after.clone()),
            None => table.objects.remove(&key),
        };
        table.log.push(Change { version, key, before, after });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str, label: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "labels": {label: ""}},
        })
    }

    fn names(snapshot: &Snapshot) -> Vec<&str> {
        snapshot.objects.keys().map(|(_, name)| name.as_str()).collect()
    }

    #[test]
    fn a_snapshot_of_the_past_undoes_changes() {
        let store = Store::default();
        store.apply(service("a", "x"));
        let then = store.apply(service("b", "x"));
        store.delete(Resource::Services, "default", "a");
        store.apply(service("b", "y"));
        store.apply(service("c", "x"));
        let past = store.snapshot(Resource::Services, Some(then)).unwrap();
        assert_eq!(names(&past), ["a", "b"]);
        let b = &past.objects[&("default".to_owned(), "b".to_owned())];
        assert_eq!(b.value["metadata"]["resourceVersion"], then.to_string());
        assert_eq!(names(&store.snapshot(Resource::Services, None).unwrap()), ["b", "c"]);
        store.expire_log();
        assert!(store.snapshot(Resource::Services, Some(then)).is_err());
    }
}
