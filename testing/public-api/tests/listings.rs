//! The listings in `docs/api` are those of the sources. `make api` writes them anew.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

/// Set to write the listings instead of comparing them.
const WRITE: &str = "SWITCHYARD_WRITE_API";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The libraries that are published: name and folder.
fn libraries() -> BTreeMap<String, PathBuf> {
    let root = workspace();
    let subfolders = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    let nested =
        ["agent", "kernel", "sources"].into_iter().flat_map(|it| subfolders(root.join(it)));
    subfolders(root.clone())
        .chain(nested)
        .filter_map(|folder| {
            let manifest = fs::read_to_string(folder.join("Cargo.toml")).ok()?;
            let is_published = !manifest.contains("\npublish") && manifest.contains("[package]");
            let (_, name) = manifest.split_once("name = \"")?;
            is_published.then(|| (name.split('"').next().unwrap().to_owned(), folder))
        })
        .collect()
}

#[test]
fn the_listings_are_those_of_the_sources() {
    let folder = workspace().join("docs/api");
    let write = env::var_os(WRITE).is_some();
    let libraries = libraries();
    assert_eq!(libraries.len(), 19, "{libraries:?}");
    let mut different = Vec::new();
    for (name, sources) in &libraries {
        let listing =
            public_api::listing(sources).unwrap_or_else(|error| panic!("{name}: {error}"));
        let file = folder.join(format!("{name}.txt"));
        if write {
            fs::create_dir_all(&folder).unwrap();
            fs::write(file, listing).unwrap();
        } else if fs::read_to_string(file).ok() != Some(listing) {
            different.push(name);
        }
    }
    assert!(
        different.is_empty(),
        "the public API of {different:?} has changed: `make api` rewrites docs/api. Is it a change \
         that needs a new version?"
    );
}

#[test]
fn a_listing_has_what_users_see_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join("src").join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    write(
        "lib.rs",
        "//! Docs.\n pub mod shown; mod hidden; #[cfg(test)] mod tests; \
         pub use self::hidden::{Exported, inner::Deep as Renamed}; pub use other::Thing;\n\
         #[cfg(feature = \"testing\")] pub mod testing;",
    );
    write(
        "shown.rs",
        "/// Docs.\n pub fn shown(a: u8) -> u8 { a }\n fn unseen() {}\n pub(crate) struct Unseen;\n\
         impl Clone for Unseen { fn clone(&self) -> Self { Unseen } }",
    );
    write(
        "hidden/mod.rs",
        "pub mod inner; #[derive(Debug)] #[non_exhaustive] pub struct Exported { pub a: u8, b: u8 }\n\
         impl Exported { pub fn new() -> Self { Self { a: 1, b: 2 } } fn unseen(&self) {} }\n\
         impl From<u8> for Exported { fn from(a: u8) -> Self { Self { a, b: 0 } } }\n\
         pub struct Unexported; impl Unexported { pub fn unseen() {} }",
    );
    write("hidden/inner.rs", "pub enum Deep { /** Docs. */ A, B(u8) }");
    let expected = "\
pub enum Renamed {
    A,
    B(u8),
}

pub mod shown {
    pub fn shown(a: u8) -> u8 {}
}

#[derive(Debug)]
#[non_exhaustive]
pub struct Exported {
    pub a: u8,
    _private: _,
}

pub use other::Thing;

impl Exported {
    pub fn new() -> Self {}
}

impl From<u8> for Exported {}
";
    assert_eq!(public_api::listing(folder.path()).unwrap(), expected);

    write("lib.rs", "pub use self::gone::Gone; mod gone {}");
    let error = public_api::listing(folder.path()).unwrap_err();
    assert_eq!(error.to_string(), "gone::Gone is exported, but not found");
}
