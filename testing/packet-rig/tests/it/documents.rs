//! The documentation and the repository agree: the files, functions, crates and headings that a
//! page names exist.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use packet_rig::page::{names, rows};

use super::semantics::root;

/// Returns every page, by its path from the root.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut paths: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"].map(PathBuf::from).into();
    for folder in ["docs", "docs/codes"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let entry = entry.unwrap();
            if entry.path().extension().is_some_and(|it| it == "md") {
                paths.push(Path::new(folder).join(entry.file_name()));
            }
        }
    }
    assert!(paths.len() > 10, "{paths:?}");
    let read = |path: PathBuf| {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

fn architecture() -> String {
    fs::read_to_string(root().join("docs/architecture.md")).unwrap()
}

/// Whether a word of the text is exactly this identifier.
fn has_identifier(text: &str, identifier: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == identifier)
}

#[test]
fn every_stop_of_the_walk_exists() {
    let text = architecture();
    let stops = rows(&text, 5);
    let stops: Vec<_> = stops.iter().filter(|cells| cells[0].parse::<usize>().is_ok()).collect();
    assert!((8..=12).contains(&stops.len()), "{stops:?}");
    for (i, cells) in stops.into_iter().enumerate() {
        assert_eq!(cells[0].parse(), Ok(i + 1), "{cells:?}");
        let [file] = names(cells[1])[..] else { panic!("{cells:?}") };
        let source =
            fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let [function] = names(cells[2])[..] else { panic!("{cells:?}") };
        let is_defined = ["(", "<"].iter().any(|c| source.contains(&format!("fn {function}{c}")));
        assert!(is_defined, "{file} has no function {function}");
        let types = names(cells[3]);
        assert!(!types.is_empty(), "{cells:?}");
        for identifier in types.iter().flat_map(|name| name.split(['<', '>', ':'])) {
            let is_there = identifier.is_empty() || has_identifier(&source, identifier);
            assert!(is_there, "{file} does not name {identifier}");
        }
    }
}

/// A crate as its manifest describes it.
struct Manifest {
    name: String,
    dependencies: Vec<String>,
}

impl Manifest {
    /// Reads the manifest in a folder, if there is one.
    fn read(folder: &Path) -> Option<Self> {
        let text = fs::read_to_string(folder.join("Cargo.toml")).ok()?;
        let section = |name: &str| {
            let start = format!("[{name}]");
            let lines = text.lines().skip_while(move |line| *line != start).skip(1);
            lines.take_while(|line| !line.starts_with('[')).map(str::to_owned)
        };
        let key = |line: &str| {
            Some(line.split_once(['.', ' ', '='])?.0.to_owned()).filter(|key| !key.is_empty())
        };
        let name = section("package").find_map(|line| {
            Some(line.strip_prefix("name = \"")?.trim_end_matches('"').to_owned())
        })?;
        // With those of single systems: `[target.'cfg(...)'.dependencies]`.
        let sections = text.lines().filter_map(|line| line.strip_prefix('[')?.strip_suffix(']'));
        let of_targets = sections
            .filter(|name| name.starts_with("target.") && name.ends_with(".dependencies"))
            .flat_map(section);
        let dependencies =
            section("dependencies").chain(of_targets).filter_map(|line| key(&line)).collect();
        Some(Self { name, dependencies })
    }
}

/// Returns the manifests of the workspace, by folder.
fn manifests() -> BTreeMap<String, Manifest> {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = workspace.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    let mut manifests = BTreeMap::new();
    for member in members.split('"').skip(1).step_by(2) {
        let folders: Vec<String> = match member.strip_suffix("/*") {
            None => vec![member.to_owned()],
            Some(parent) => {
                let entries = fs::read_dir(root().join(parent)).unwrap();
                let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
                entries.map(|entry| format!("{parent}/{}", name(entry.unwrap()))).collect()
            }
        };
        for folder in folders {
            if let Some(manifest) = Manifest::read(&root().join(&folder)) {
                manifests.insert(folder, manifest);
            }
        }
    }
    assert!(manifests.len() > 10, "{:?}", manifests.keys());
    manifests
}

/// Returns the folders of the workspace's crates.
pub fn folders() -> Vec<String> {
    manifests().into_keys().collect()
}

#[test]
fn the_map_of_crates_is_the_workspace() {
    let (text, manifests) = (architecture(), manifests());
    let rows: Vec<_> =
        rows(&text, 4).into_iter().filter(|cells| cells[0].starts_with('`')).collect();
    let folders: Vec<&str> = rows.iter().map(|cells| names(cells[0])[0]).collect();
    let mut sorted = folders.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, manifests.keys().map(String::as_str).collect::<Vec<_>>());
    let folder_of = |name: &String| {
        manifests.iter().find(|(_, manifest)| manifest.name == *name).map(|(folder, _)| folder)
    };
    for (i, cells) in rows.iter().enumerate() {
        let manifest = &manifests[folders[i]];
        let mut expected: Vec<&str> =
            manifest.dependencies.iter().filter_map(folder_of).map(String::as_str).collect();
        expected.sort_unstable();
        assert_eq!(names(cells[1]), expected, "what {} builds on", folders[i]);
        for folder in expected {
            let is_below = folders[i..].contains(&folder);
            assert!(is_below, "{folder} stands above {}", folders[i]);
        }
    }
}

/// Returns whether the manifest of a library leaves out `publish = false`.
fn is_published(folder: &str) -> bool {
    !fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap().contains("publish.")
}

#[test]
fn every_published_crate_has_the_licence_and_begins_with_an_example() {
    let published: Vec<String> =
        folders().into_iter().filter(|folder| is_published(folder)).collect();
    assert!(published.len() > 5, "{published:?}");
    for folder in published {
        let read = |file: &str| fs::read_to_string(root().join(&folder).join(file)).unwrap();
        assert!(read("README.md").contains("\n```rust"), "{folder}/README.md has no example");
        let includes = read("src/lib.rs").starts_with("#![doc = include_str!(\"../README.md\")]");
        assert!(includes, "the examples of {folder}/README.md are not compiled");
        let licence = fs::read_to_string(root().join("LICENSE")).unwrap();
        assert!(read("LICENSE") == licence, "{folder}/LICENSE is not that of the workspace");
    }
}

/// Returns the code spans of a page: single words between backticks, outside of blocks of code.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    let outside = text.split("\n```").step_by(2);
    let lines = outside.flat_map(str::lines).filter(|line| !line.starts_with("    "));
    lines.flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Whether a word is the name of an annotation, such as `switchyard/weights`: there is a folder of
/// that name.
fn is_annotation(word: &str) -> bool {
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    word.strip_prefix("switchyard/").is_some_and(is_name) && !root().join(word).exists()
}

/// Whether a word looks like the path of a file or folder in this repository, without what is
/// built.
fn is_repository_path(word: &str) -> bool {
    let is_path = word.contains('/')
        && !is_annotation(word)
        && !word.starts_with(['/', '-', '.'])
        && !word.starts_with("target/")
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "/_-.*:".contains(c));
    let first = word.split('/').next().unwrap_or_default();
    let extensions = [".rs", ".md", ".toml", ".sh"];
    // Annotations begin as the paths of the crate `switchyard` do.
    let is_annotation = first == "switchyard";
    is_path
        && ((root().join(first).is_dir() && !is_annotation)
            || word.contains("/src/")
            || extensions.iter().any(|end| word.ends_with(end)))
}

#[test]
fn every_path_in_the_pages_exists() {
    let mut count = 0;
    for (page, text) in pages() {
        for word in spans(&text).filter(|word| is_repository_path(word)) {
            let path = word.split("::").next().unwrap_or_default();
            let path = path.split("/*").next().unwrap_or_default();
            assert!(root().join(path).exists(), "{}: there is no {word}", page.display());
            count += 1;
        }
    }
    assert!(count > 100, "only {count} paths");
}

/// Returns the anchor of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    heading.to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_link_in_the_pages_leads_somewhere() {
    let pages = pages();
    for (page, text) in &pages {
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => root().join(page),
                file => root().join(page).parent().unwrap().join(file),
            };
            assert!(path.exists(), "{}: there is no {target}", page.display());
            if !heading.is_empty() {
                let linked = fs::read_to_string(&path).unwrap();
                let mut headings = linked.lines().filter(|line| line.starts_with('#'));
                let is_there =
                    headings.any(|line| anchor(line.trim_start_matches('#').trim()) == heading);
                assert!(is_there, "{}: there is no {target}", page.display());
            }
        }
    }
}

/// The file that is kube-proxy's again after the way back, to whose releases before 1.37 an entry
/// is a network, or the only word.
#[test]
fn node_port_addresses_are_written_as_any_kube_proxy_reads_them() {
    for (page, text) in pages() {
        for list in spans(&text).filter_map(|span| span.strip_prefix("nodePortAddresses: [")) {
            let are_networks = list.split(',').all(|entry| entry.contains('/'));
            assert!(are_networks || list == "primary]", "{} has {list}", page.display());
        }
    }
}

/// The summary of the site, by which readers find the page. scripts/build-site.sh adds the codes.
#[test]
fn every_page_is_in_the_summary() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let is_listed = |page: &PathBuf| {
        !page.ends_with("SUMMARY.md")
            && (!page.starts_with("docs/codes") || page.ends_with("README.md"))
    };
    for page in pages().into_keys().filter(is_listed) {
        let link = match page.strip_prefix("docs") {
            Ok(page) => format!("]({})", page.display()),
            Err(_) => format!("](../{})", page.display()),
        };
        assert!(summary.contains(&link), "docs/SUMMARY.md has no link {link}");
    }
}

#[test]
fn every_package_in_a_command_exists() {
    let manifests = manifests();
    let mut count = 0;
    for (page, text) in pages() {
        for command in text.lines().flat_map(|line| line.split("cargo ").skip(1)) {
            let mut words = command.split(['`', '&']).next().unwrap_or_default().split_whitespace();
            if words.any(|word| ["-p", "--package"].contains(&word)) {
                let name = words.next().unwrap_or_default();
                let exists = manifests.values().any(|manifest| manifest.name == name);
                assert!(exists, "{}: there is no package {name}", page.display());
                count += 1;
            }
        }
    }
    assert!(count > 3, "only {count} commands");
}

/// Adds the Rust sources below a folder.
pub fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

#[test]
fn comments_keep_the_rules_of_style() {
    const QUESTIONS: [&str; 5] = ["What", "How", "Which", "When", "Who"];
    let mut paths = Vec::new();
    sources(&root(), &mut paths);
    let mut wrong = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let mut before = "";
        for (line, number) in text.lines().zip(1..) {
            let comment = line.trim_start();
            let doc = |line: &str| line.starts_with("///") || line.starts_with("//!");
            let begins = doc(comment) && !doc(before);
            let first = comment.get(3..).unwrap_or_default().split_whitespace().next();
            let is_long = line.chars().count() > 100 && !comment.contains(['|', '`']);
            if comment.starts_with("//") && is_long
                || begins && first.is_some_and(|word| QUESTIONS.contains(&word))
            {
                wrong.push(format!("{}:{number}: {comment}", path.display()));
            }
            before = comment;
        }
    }
    assert!(wrong.is_empty(), "see CONTRIBUTING.md, Style:\n{}", wrong.join("\n"));
}
