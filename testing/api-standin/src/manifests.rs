//! The follower of a directory of manifests: what is in the directory is in the store.
//!
//! Tests of a client that knows no manifests write the files that they have for Switchyard.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use tokio::time;

use crate::{Resource, defaults::add_defaults, store::Store};

/// The time between two looks at the directory.
const INTERVAL: Duration = Duration::from_millis(20);

/// The identity of an object: its resource, its namespace (empty for objects of the cluster) and
/// its name.
type Identity = (Resource, String, String);

/// A directory of `.yaml`, `.yml` and `.json` files whose objects are in a store, with the fields
/// that a genuine server adds.
#[derive(Debug)]
pub struct Manifests {
    directory: PathBuf,
    store: Store,
    texts: BTreeMap<PathBuf, String>,
    objects: BTreeMap<Identity, Value>,
}

impl Manifests {
    /// Puts the objects of a directory into the store.
    pub fn load(directory: &Path, store: Store) -> Self {
        let (texts, objects) = (BTreeMap::new(), BTreeMap::new());
        let mut manifests = Self { directory: directory.to_owned(), store, texts, objects };
        manifests.update();
        manifests
    }

    /// Follows the changes of the directory for ever.
    pub async fn follow(mut self) {
        loop {
            time::sleep(INTERVAL).await;
            self.update();
        }
    }

    /// Reads the directory, and changes in the store what has changed in the files.
    fn update(&mut self) {
        let texts = read_all(&self.directory);
        if texts == self.texts {
            return;
        }
        let mut objects = BTreeMap::new();
        for (path, text) in &texts {
            let decoded = serde_saphyr::from_multiple::<Value>(text)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            for mut object in decoded.into_iter().flat_map(items) {
                add_defaults(&mut object);
                let identity = Store::identity(&object);
                if self.objects.get(&identity) != Some(&object) {
                    self.store.apply(object.clone());
                }
                objects.insert(identity, object);
            }
        }
        for gone in self.objects.keys().filter(|identity| !objects.contains_key(identity)) {
            let (resource, namespace, name) = gone;
            self.store.delete(*resource, namespace, name);
        }
        (self.texts, self.objects) = (texts, objects);
    }
}

/// The objects of a `List`, or the object itself. Empty documents have none.
fn items(document: Value) -> Vec<Value> {
    match document {
        Value::Null => Vec::new(),
        Value::Object(mut list) if list.get("kind").is_some_and(|kind| kind == "List") => {
            match list.remove("items") {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            }
        }
        object => vec![object],
    }
}

/// Reads all files of manifests. A file that is replaced while the directory is read is read at the
/// next look.
fn read_all(directory: &Path) -> BTreeMap<PathBuf, String> {
    let mut texts = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let is_manifest =
            |extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known);
        if !path.extension().is_some_and(is_manifest) {
            continue;
        }
        match fs::read_to_string(&path) {
            Ok(text) => drop(texts.insert(path, text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: a}}\n";

    fn service(name: &str) -> String {
        format!("---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{}}\n")
    }

    fn names(store: &Store) -> Vec<String> {
        let objects = store.snapshot(Resource::Services, None).unwrap().objects;
        objects.into_keys().map(|(_, name)| name).collect()
    }

    #[test]
    fn the_store_has_what_the_directory_has() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        write("a.yaml", &(NODE.to_owned() + &service("one") + &service("two")));
        write("notes.txt", "{");
        let store = Store::default();
        let mut manifests = Manifests::load(directory.path(), store.clone());
        assert_eq!(names(&store), ["one", "two"]);
        let one = store.get(Resource::Services, "default", "one").unwrap();
        assert_eq!(one["spec"]["type"], "ClusterIP");

        let version = store.version();
        manifests.update();
        write("a.yaml", &(NODE.to_owned() + &service("two")));
        write("b.yaml", &service("one"));
        manifests.update();
        assert_eq!(store.version(), version, "the same objects, in other files");

        fs::remove_file(directory.path().join("b.yaml")).unwrap();
        let four = r#"{apiVersion: v1, kind: Service, metadata: {name: four}}"#;
        write("d.yaml", &format!("---\n---\napiVersion: v1\nkind: List\nitems: [{four}]\n"));
        write(
            "c.json",
            r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "three"}}"#,
        );
        manifests.update();
        assert_eq!(names(&store), ["four", "three", "two"]);
    }
}
