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

use crate::{
    Resource,
    defaults::add_defaults,
    store::{Store, StoreError},
};

/// The time between two looks at the directory.
const INTERVAL: Duration = Duration::from_millis(20);

/// Why the objects of a directory cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// The directory or a file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is neither YAML nor JSON.
    #[error("cannot decode {}: {message}", path.display())]
    Decode {
        /// The file.
        path: PathBuf,
        /// The place and the cause.
        message: String,
    },
    /// An object cannot be stored.
    #[error("cannot serve an object of {}", path.display())]
    Object {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: StoreError,
    },
}

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
    ///
    /// # Errors
    ///
    /// If a file cannot be read or decoded, or has an object that the stand-in does not serve.
    pub fn load(directory: &Path, store: Store) -> Result<Self, ManifestError> {
        let (texts, objects) = (BTreeMap::new(), BTreeMap::new());
        let mut manifests = Self { directory: directory.to_owned(), store, texts, objects };
        manifests.update()?;
        Ok(manifests)
    }

    /// Follows the changes of the directory.
    ///
    /// # Errors
    ///
    /// Ends with the first error: the objects of a test are meant to be served.
    pub async fn follow(mut self) -> ManifestError {
        loop {
            time::sleep(INTERVAL).await;
            if let Err(error) = self.update() {
                return error;
            }
        }
    }

    /// Reads the directory, and changes in the store what has changed in the files.
    fn update(&mut self) -> Result<(), ManifestError> {
        let texts = read_all(&self.directory)?;
        if texts == self.texts {
            return Ok(());
        }
        let mut objects = BTreeMap::new();
        for (path, text) in &texts {
            let decoded = serde_saphyr::from_multiple::<Value>(text).map_err(|error| {
                ManifestError::Decode { path: path.clone(), message: error.to_string() }
            })?;
            for mut object in decoded.into_iter().flat_map(items) {
                add_defaults(&mut object);
                let object_error = |source| ManifestError::Object { path: path.clone(), source };
                let identity = Store::identity(&object).map_err(object_error)?;
                if self.objects.get(&identity) != Some(&object) {
                    self.store.apply(object.clone()).map_err(object_error)?;
                }
                objects.insert(identity, object);
            }
        }
        for gone in self.objects.keys().filter(|identity| !objects.contains_key(identity)) {
            let (resource, namespace, name) = gone;
            self.store.delete(*resource, namespace, name);
        }
        (self.texts, self.objects) = (texts, objects);
        Ok(())
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
fn read_all(directory: &Path) -> Result<BTreeMap<PathBuf, String>, ManifestError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ManifestError::Read { path, source }
    };
    let mut texts = BTreeMap::new();
    for entry in fs::read_dir(directory).map_err(failed(directory))? {
        let path = entry.map_err(failed(directory))?.path();
        let is_manifest =
            |extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known);
        if !path.extension().is_some_and(is_manifest) {
            continue;
        }
        match fs::read_to_string(&path) {
            Ok(text) => drop(texts.insert(path, text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            Err(error) => return Err(failed(&path)(error)),
        }
    }
    Ok(texts)
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
        let store = Store::new(100);
        let mut manifests = Manifests::load(directory.path(), store.clone()).unwrap();
        assert_eq!(names(&store), ["one", "two"]);
        let one = store.get(Resource::Services, "default", "one").unwrap();
        assert_eq!(one["spec"]["type"], "ClusterIP");

        let version = store.version();
        manifests.update().unwrap();
        write("a.yaml", &(NODE.to_owned() + &service("two")));
        write("b.yaml", &service("one"));
        manifests.update().unwrap();
        assert_eq!(store.version(), version, "the same objects, in other files");

        fs::remove_file(directory.path().join("b.yaml")).unwrap();
        let four = r#"{apiVersion: v1, kind: Service, metadata: {name: four}}"#;
        write("d.yaml", &format!("---\n---\napiVersion: v1\nkind: List\nitems: [{four}]\n"));
        write(
            "c.json",
            r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "three"}}"#,
        );
        manifests.update().unwrap();
        assert_eq!(names(&store), ["four", "three", "two"]);
    }

    #[test]
    fn errors_name_the_file() {
        for (text, part) in [("{", "decode"), ("{apiVersion: v1, kind: Pod}", "serve an object")] {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join("bad.yaml"), text).unwrap();
            let error = Manifests::load(directory.path(), Store::new(1)).unwrap_err().to_string();
            assert!(error.contains("bad.yaml") && error.contains(part), "{error}");
        }
        let error = Manifests::load("/nowhere".as_ref(), Store::new(1)).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /nowhere");
    }
}
