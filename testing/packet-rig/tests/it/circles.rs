//! The modules of a crate do not import each other in circles.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::semantics::root;

/// A module, by its path in the crate.
type Module = Vec<String>;

/// Adds the sources below `folder`, which is `module`, without tests.
fn read(folder: &Path, module: &[String], found: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let own = [module, std::slice::from_ref(&name)].concat();
        if name.contains("tests") {
        } else if path.is_dir() {
            read(&path, &own, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let own = if ["lib", "main", "mod"].contains(&&*name) { module.to_vec() } else { own };
            let text = fs::read_to_string(&path).unwrap();
            let code = ["tests", "kernel_tests"].iter().fold(&*text, |code, name| {
                code.split(&format!("#[cfg(test)]\nmod {name} {{")).next().unwrap_or(code)
            });
            found.entry(own).or_default().push_str(code);
        }
    }
}

/// Returns each path of an import, of which braces hold several.
fn paths(import: &str) -> Vec<String> {
    let Some((prefix, rest)) = import.split_once('{') else { return vec![import.to_owned()] };
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, c) in rest.char_indices() {
        match c {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                found.extend(paths(&rest[start..at]).iter().map(|path| format!("{prefix}{path}")));
                start = at + 1;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    found
}

/// Returns the imports between modules: of the two that contain user and used, and are in one
/// module.
fn imports(modules: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut edges = BTreeMap::<Module, BTreeSet<Module>>::new();
    for (module, text) in modules {
        let statements =
            text.split("use ").skip(1).filter_map(|rest| Some(rest.split_once(';')?.0));
        let own =
            statements.filter(|path| path.starts_with("crate::") || path.starts_with("super"));
        for path in own.flat_map(|path| paths(&path.split_whitespace().collect::<String>())) {
            let mut used = module.clone();
            for segment in path.split("::") {
                match segment {
                    "crate" => used.clear(),
                    "super" => drop(used.pop()),
                    name => {
                        used.push(name.to_owned());
                        if !modules.keys().any(|module| module.starts_with(&used)) {
                            used.pop();
                            break;
                        }
                    }
                }
            }
            let same = module.iter().zip(&used).take_while(|(a, b)| a == b).count();
            if same < module.len().min(used.len()) {
                edges.entry(module[..=same].into()).or_default().insert(used[..=same].into());
            }
        }
    }
    edges
}

/// Returns modules of a circle, if there is one: those that reach themselves.
fn circle(edges: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<String> {
    let reached = |from: &Module| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(module) = open.pop() {
            open.extend(edges.get(module).into_iter().flatten().filter(|next| seen.insert(*next)));
        }
        seen.contains(from)
    };
    edges.keys().filter(|module| reached(module)).map(|module| module.join("::")).collect()
}

#[test]
fn no_modules_import_each_other_in_a_circle() {
    let crates = super::documents::folders();
    for folder in crates.iter().filter(|folder| !folder.starts_with("testing/")) {
        let mut modules = BTreeMap::new();
        read(&root().join(folder).join("src"), &[], &mut modules);
        let found = circle(&imports(&modules));
        assert!(found.is_empty(), "{folder}: these import each other in a circle: {found:?}");
    }
}
