//! The modules of a crate, read from its files.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use syn::{Attribute, Item};

use crate::ListingError;

/// A module with its items. Those of modules within are in `modules`.
pub struct Module {
    /// The items in the order of the source, `mod` items included, but without their content.
    pub items: Vec<Item>,
    /// The modules within, by name.
    pub modules: HashMap<String, Module>,
}

impl Module {
    /// Reads the library whose root is `src/lib.rs` in `folder`.
    pub fn read_crate(folder: &Path) -> Result<Self, ListingError> {
        let source = folder.join("src");
        Self::read_file(&source.join("lib.rs"), &source)
    }

    /// Every module, this one first.
    pub fn all(&self) -> Vec<&Self> {
        let mut found = vec![self];
        found.extend(self.modules.values().flat_map(Self::all));
        found
    }

    /// Reads a module whose own modules are files in `folder`.
    fn read_file(file: &Path, folder: &Path) -> Result<Self, ListingError> {
        let text = fs::read_to_string(file)
            .map_err(|source| ListingError::Read { file: file.to_owned(), source })?;
        let parsed = syn::parse_file(&text)
            .map_err(|source| ListingError::Parse { file: file.to_owned(), source })?;
        Self::from_items(parsed.items, folder)
    }

    fn from_items(items: Vec<Item>, folder: &Path) -> Result<Self, ListingError> {
        let mut module = Self { items: Vec::new(), modules: HashMap::new() };
        for item in items {
            if let Item::Mod(inner) = &item {
                if is_left_out(&inner.attrs) {
                    continue;
                }
                let name = inner.ident.to_string();
                let within = folder.join(&name);
                let read = match &inner.content {
                    Some((_, items)) => Self::from_items(items.clone(), &within)?,
                    None => Self::read_file(&file_of(folder, &name), &within)?,
                };
                module.modules.insert(name, read);
            }
            module.items.push(item);
        }
        Ok(module)
    }
}

fn file_of(folder: &Path, name: &str) -> PathBuf {
    let file = folder.join(format!("{name}.rs"));
    if file.exists() { file } else { folder.join(name).join("mod.rs") }
}

/// Whether an item is only for tests, of this crate or of others.
pub fn is_left_out(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let Ok(list) = attribute.meta.require_list() else { return false };
        let condition = list.tokens.to_string();
        list.path.is_ident("cfg")
            && (condition == "test" || condition.contains("\"testing\"") || condition == "doctest")
    })
}
