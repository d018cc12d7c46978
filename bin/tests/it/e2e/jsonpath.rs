//! The part of kubectl's JSONPath templates that `e2e/` uses.

use serde_json::Value;

/// Returns what kubectl prints for a template. Fields that are absent print nothing.
pub fn print(template: &str, root: &Value) -> String {
    let mut output = String::new();
    let pieces = pieces(template);
    print_pieces(&pieces, root, &mut output);
    output
}

/// What is between braces, without these.
fn pieces(template: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some(inner) = rest.strip_prefix('{') {
        let end = end_of_piece(inner);
        pieces.push(&inner[..end]);
        rest = &inner[end + 1..];
    }
    assert_eq!(rest, "", "text between braces only: {template}");
    pieces
}

fn end_of_piece(inner: &str) -> usize {
    let mut quoted = false;
    for (i, c) in inner.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '}' if !quoted => return i,
            _ => {}
        }
    }
    panic!("no closing brace: {inner}")
}

fn print_pieces(pieces: &[&str], value: &Value, output: &mut String) {
    let mut i = 0;
    while let Some(piece) = pieces.get(i) {
        if let Some(path) = piece.strip_prefix("range ") {
            let end = pieces.iter().skip(i).position(|piece| *piece == "end").unwrap() + i;
            for item in select(path, value) {
                print_pieces(&pieces[i + 1..end], item, output);
            }
            i = end;
        } else if let Some(text) = piece.strip_prefix('"') {
            output.push_str(&text.strip_suffix('"').unwrap().replace("\\n", "\n"));
        } else {
            let found: Vec<String> = select(piece, value).into_iter().map(text).collect();
            output.push_str(&found.join(" "));
        }
        i += 1;
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the values that a path leads to.
fn select<'v>(path: &str, root: &'v Value) -> Vec<&'v Value> {
    let mut values = vec![root];
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let (index, after) = after.split_once(']').unwrap();
            values = values.into_iter().flat_map(|value| items(index, value)).collect();
            rest = after;
        } else {
            let after = rest.strip_prefix('.').unwrap_or_else(|| panic!("not a path: {path}"));
            // A dot of the name is written with a backslash.
            let after = after.replace("\\.", "\0");
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let name = after[..end].replace('\0', ".");
            values = values.into_iter().filter_map(|value| value.get(&name)).collect();
            rest = &rest[1 + name.len() + after[..end].matches('\0').count()..];
        }
    }
    values
}

fn items<'v>(index: &str, value: &'v Value) -> Vec<&'v Value> {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    if index == "*" {
        return items.iter().collect();
    }
    if let Some(filter) = index.strip_prefix("?(@.") {
        let (name, wanted) = filter.strip_suffix(')').unwrap().split_once("==").unwrap();
        let wanted = wanted.trim_matches('"');
        return items.iter().filter(|item| item[name] == wanted).collect();
    }
    items.get(index.parse::<usize>().unwrap()).into_iter().collect()
}

#[test]
fn templates_print_what_kubectl_prints() {
    let value = serde_json::json!({"items": [
        {"name": "a", "labels": {"x.y/z": "1"}, "ports": [{"name": "p", "n": 1}, {"name": "q", "n": 2}]},
        {"name": "b", "labels": {"k": "v"}, "ports": []},
    ]});
    for (template, expected) in [
        ("{range .items[*]}{.name}{\" \"}{.ports[*].n}{\"\\n\"}{end}", "a 1 2\nb \n"),
        ("{.items[0].ports[?(@.name==\"q\")].n}", "2"),
        ("{.items[0].labels.x\\.y/z}{\" \"}{.absent.name}", "1 "),
        ("{.items[1].labels}", r#"{"k":"v"}"#),
        ("{.items[*].name}", "a b"),
    ] {
        assert_eq!(print(template, &value), expected, "{template}");
    }
}
