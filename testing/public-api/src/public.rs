//! What is reachable from outside a crate, printed.

use std::{
    collections::{BTreeSet, HashSet},
    path::Path,
};

use proc_macro2::Span;
use syn::{File, Ident, Item, ItemImpl, ItemMacro, Type, UseTree};

use crate::{
    ListingError,
    crate_tree::{Module, is_left_out},
    stripped::{self, is_public},
};

/// Prints the public API of the library in `folder`.
///
/// # Errors
/// If a source cannot be read, or exports what is not in the crate.
pub fn listing(folder: &Path) -> Result<String, ListingError> {
    let root = Module::read_crate(folder)?;
    let crate_ = Crate { root: &root };
    let mut names = HashSet::new();
    let items = crate_.public_items(&[], &mut names)?;
    let mut blocks: Vec<String> = sorted(items);
    blocks.extend(sorted(crate_.impls(&names)));
    Ok(blocks.join("\n"))
}

/// Prints each item, in order; each once.
fn sorted(items: Vec<Item>) -> Vec<String> {
    let print = |item: Item| {
        let mut file: File = syn::parse_quote!();
        file.items.push(item);
        prettyplease::unparse(&file)
    };
    let mut printed: Vec<(String, String)> = items
        .into_iter()
        .map(|item| {
            // By kind and name, and only then by attributes.
            let text: String = print(item);
            let name = text.lines().find(|line| !line.starts_with("#[")).unwrap_or_default();
            (name.to_owned(), text)
        })
        .collect();
    printed.sort();
    printed.dedup();
    printed.into_iter().map(|(_, text)| text).collect()
}

struct Crate<'a> {
    root: &'a Module,
}

impl Crate<'_> {
    fn module(&self, path: &[String]) -> Option<&Module> {
        path.iter().try_fold(self.root, |module, name| module.modules.get(name))
    }

    /// What a module exports, itself and by `pub use`. Adds the names of types and traits to `names`.
    fn public_items(
        &self,
        path: &[String],
        names: &mut HashSet<String>,
    ) -> Result<Vec<Item>, ListingError> {
        let not_found = || ListingError::NotFound { path: path.join("::") };
        let module = self.module(path).ok_or_else(not_found)?;
        let mut found = Vec::new();
        for item in &module.items {
            match item {
                Item::Mod(inner) if is_public(&inner.vis) => {
                    found.push(self.public_module(path, &inner.ident, &inner.ident, names)?);
                }
                Item::Use(exported)
                    if is_public(&exported.vis) && !is_left_out(&exported.attrs) =>
                {
                    self.exported(path, &[], &exported.tree, names, &mut found)?;
                }
                item => found.extend(named(item, None, names)),
            }
        }
        Ok(found)
    }

    /// A public module with what it exports.
    fn public_module(
        &self,
        parent: &[String],
        ident: &Ident,
        name: &Ident,
        names: &mut HashSet<String>,
    ) -> Result<Item, ListingError> {
        let path = [parent, &[ident.to_string()]].concat();
        let items = sorted(self.public_items(&path, names)?).concat();
        // Attributes, such as the feature that the module needs.
        let declared = self.module(parent).into_iter().flat_map(|module| &module.items);
        let attributes = declared.filter_map(|item| match item {
            Item::Mod(inner) if inner.ident == *ident => Some(&inner.attrs),
            _ => None,
        });
        let conditions: Vec<_> = attributes
            .flatten()
            .filter(|attribute| attribute.path().is_ident("cfg"))
            .cloned()
            .collect();
        let content = syn::parse_file(&items)
            .map_err(|source| ListingError::Parse { file: path.join("::").into(), source })?;
        let items = content.items;
        Ok(syn::parse_quote!(#(#conditions)* pub mod #name { #(#items)* }))
    }

    /// What a `pub use` exports. `prefix` is the path so far.
    fn exported(
        &self,
        at: &[String],
        prefix: &[String],
        tree: &UseTree,
        names: &mut HashSet<String>,
        found: &mut Vec<Item>,
    ) -> Result<(), ListingError> {
        match tree {
            UseTree::Path(path) => {
                let prefix = [prefix, &[path.ident.to_string()]].concat();
                self.exported(at, &prefix, &path.tree, names, found)
            }
            UseTree::Group(group) => group
                .items
                .iter()
                .try_for_each(|tree| self.exported(at, prefix, tree, names, found)),
            UseTree::Name(name) => self.export(at, prefix, &name.ident, &name.ident, names, found),
            UseTree::Rename(to) => self.export(at, prefix, &to.ident, &to.rename, names, found),
            UseTree::Glob(_) => {
                let path = self.local(at, prefix).ok_or_else(|| not_found(prefix, "*"))?;
                found.extend(self.public_items(&path, names)?);
                Ok(())
            }
        }
    }

    /// Exports `ident` of the module `prefix` as `name`.
    fn export(
        &self,
        at: &[String],
        prefix: &[String],
        ident: &Ident,
        name: &Ident,
        names: &mut HashSet<String>,
        found: &mut Vec<Item>,
    ) -> Result<(), ListingError> {
        let Some(path) = self.local(at, prefix) else {
            let prefix: Vec<Ident> = prefix.iter().map(|part| quoted(part)).collect();
            let renamed: Item = match ident == name {
                true => syn::parse_quote!(pub use #(#prefix::)* #ident;),
                false => syn::parse_quote!(pub use #(#prefix::)* #ident as #name;),
            };
            names.insert(name.to_string());
            found.push(renamed);
            return Ok(());
        };
        let module = self.module(&path).ok_or_else(|| not_found(&path, &ident.to_string()))?;
        let before = found.len();
        for item in &module.items {
            match item {
                Item::Mod(inner) if inner.ident == *ident => {
                    found.push(self.public_module(&path, ident, name, names)?);
                }
                Item::Use(again) if !matches!(again.vis, syn::Visibility::Inherited) => {
                    self.export_again(&path, &[], &again.tree, ident, name, names, found)?;
                }
                item if ident_of(item).is_some_and(|found| found == ident) => {
                    found.extend(named(item, Some(name), names));
                }
                // What a macro makes is known by its name alone.
                Item::Macro(call) if calls_with(call, ident) => {
                    names.insert(name.to_string());
                    let path: Vec<Ident> = path.iter().map(|part| quoted(part)).collect();
                    found.push(syn::parse_quote!(pub use crate::#(#path::)* #name;));
                }
                _ => {}
            }
        }
        match found.len() > before {
            true => Ok(()),
            false => Err(not_found(&path, &ident.to_string())),
        }
    }

    /// Follows a `use` of another module that exports `wanted`.
    #[expect(clippy::too_many_arguments, reason = "a path, a tree, and what is made of them")]
    fn export_again(
        &self,
        at: &[String],
        prefix: &[String],
        tree: &UseTree,
        wanted: &Ident,
        name: &Ident,
        names: &mut HashSet<String>,
        found: &mut Vec<Item>,
    ) -> Result<(), ListingError> {
        match tree {
            UseTree::Path(path) => {
                let prefix = [prefix, &[path.ident.to_string()]].concat();
                self.export_again(at, &prefix, &path.tree, wanted, name, names, found)
            }
            UseTree::Group(group) => group.items.iter().try_for_each(|tree| {
                self.export_again(at, prefix, tree, wanted, name, names, found)
            }),
            UseTree::Name(found_name) if found_name.ident == *wanted => {
                self.export(at, prefix, wanted, name, names, found)
            }
            UseTree::Rename(to) if to.rename == *wanted => {
                self.export(at, prefix, &to.ident, name, names, found)
            }
            _ => Ok(()),
        }
    }

    /// The path from the root, if the path leads to a module of this crate.
    fn local(&self, at: &[String], prefix: &[String]) -> Option<Vec<String>> {
        let mut path = at.to_vec();
        for (i, part) in prefix.iter().enumerate() {
            match part.as_str() {
                "self" => {}
                "crate" if i == 0 => path.clear(),
                "super" => drop(path.pop()),
                part => path.push(part.to_owned()),
            }
        }
        self.module(&path)?;
        (!prefix.is_empty()).then_some(path)
    }

    /// The impls of public types and traits.
    fn impls(&self, public: &HashSet<String>) -> Vec<Item> {
        let modules = self.root.all();
        let items = || modules.iter().flat_map(|module| &module.items);
        let private: HashSet<String> = items()
            .filter_map(ident_of)
            .map(Ident::to_string)
            .filter(|name| !public.contains(name))
            .collect();
        let mut found: Vec<Item> = Vec::new();
        for item in items() {
            match item {
                Item::Impl(block)
                    if !is_left_out(&block.attrs)
                        && !mentioned(block).iter().any(|name| private.contains(name)) =>
                {
                    found.extend(stripped::impl_block(block).map(Item::Impl));
                }
                // Impls that a macro writes.
                Item::Macro(call)
                    if call.ident.is_none() && !call.mac.path.is_ident("thread_local") =>
                {
                    found.push(item.clone());
                }
                _ => {}
            }
        }
        found
    }
}

/// Whether a macro is called with this name among its arguments.
fn calls_with(call: &ItemMacro, ident: &Ident) -> bool {
    let tokens = call.mac.tokens.to_string();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    call.ident.is_none() && tokens.split(|c| !is_word(c)).any(|word| ident == word)
}

/// An identifier that was one in a source.
fn quoted(part: &str) -> Ident {
    Ident::new(part, Span::call_site())
}

fn not_found(path: &[String], name: &str) -> ListingError {
    ListingError::NotFound { path: format!("{}::{name}", path.join("::")) }
}

/// The item as users see it, if it is public.
fn named(item: &Item, rename: Option<&Ident>, names: &mut HashSet<String>) -> Option<Item> {
    let found = stripped::item(item, rename)?;
    names.extend(ident_of(item).map(Ident::to_string));
    Some(found)
}

fn ident_of(item: &Item) -> Option<&Ident> {
    Some(match item {
        Item::Const(it) => &it.ident,
        Item::Static(it) => &it.ident,
        Item::Type(it) => &it.ident,
        Item::Fn(it) => &it.sig.ident,
        Item::Struct(it) => &it.ident,
        Item::Enum(it) => &it.ident,
        Item::Trait(it) => &it.ident,
        _ => return None,
    })
}

/// The names of the type and of the trait of an impl, as far as they are paths.
fn mentioned(block: &ItemImpl) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut ty = &*block.self_ty;
    while let Type::Reference(reference) = ty {
        ty = &reference.elem;
    }
    if let Type::Path(path) = ty {
        names.extend(path.path.segments.last().map(|segment| segment.ident.to_string()));
    }
    if let Some((path, _)) = &block.trait_ {
        names.extend(path.segments.last().map(|segment| segment.ident.to_string()));
    }
    names
}
