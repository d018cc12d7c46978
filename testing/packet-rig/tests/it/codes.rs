//! Each code of a finding has a page, which begins with the finding, and a line in the index.

use std::{collections::BTreeMap, fs};

use super::{documents::sources, semantics::root};

/// Returns the codes in the sources, each by `Code::new("SWY` at exactly one place.
fn codes() -> Vec<String> {
    let mut paths = Vec::new();
    sources(&root(), &mut paths);
    let mut codes = Vec::new();
    for path in paths {
        let text = fs::read_to_string(path).unwrap();
        let found = text.split("Code::new(\"SWY").skip(1);
        codes.extend(found.filter_map(|rest| Some(format!("SWY{}", rest.split_once('"')?.0))));
    }
    // This file is one of the sources.
    codes.retain(|code| code.len() == 7 && code[3..].parse::<u16>().is_ok());
    codes.sort_unstable();
    codes
}

#[test]
fn each_code_has_a_page_and_a_line_in_the_index() {
    let folder = root().join("docs/codes");
    let mut index = String::new();
    let mut pages = BTreeMap::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        match path.file_stem().unwrap().to_str().unwrap() {
            "README" => index = text,
            code => {
                let finding = text.lines().next().unwrap().strip_prefix(&format!("# {code}: "));
                let finding = finding.unwrap_or_else(|| panic!("{code}.md begins otherwise"));
                pages.insert(code.to_owned(), finding.to_owned());
            }
        }
    }
    assert_eq!(pages.keys().cloned().collect::<Vec<_>>(), codes());
    let rows = pages.iter().map(|(code, text)| format!("- [{code}]({code}.md): {text}\n"));
    let listed: String =
        index.lines().filter(|line| line.starts_with("- ")).map(|l| format!("{l}\n")).collect();
    assert_eq!(listed, rows.collect::<String>(), "the list of docs/codes/README.md");
}
