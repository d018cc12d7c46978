//! Output with names that other programs chose.

use std::{
    borrow::Cow,
    io::{self, Write},
};

use switchyard_core::explain::Printable;

/// Prints lines with such names to standard output. Whoever puts the lines together has escaped
/// line feeds in the names.
///
/// # Errors
/// If standard output cannot be written to.
pub fn print_lines(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    text.lines().try_for_each(|line| writeln!(output, "{}", Printable(line)))
}

/// Prints JSON to standard output.
///
/// # Errors
/// If standard output cannot be written to.
pub fn print_json(text: &str) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", json(text.trim_end()))
}

/// Returns the same JSON, whose strings have no characters that a terminal would not show.
pub fn json(text: &str) -> Cow<'_, str> {
    // Line feeds are between the strings.
    let shows = |c: char| c == '\n' || Printable::shows(c);
    if text.chars().all(shows) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if shows(c) {
            shown.push(c);
        } else {
            let mut units = [0; 2];
            let units = c.encode_utf16(&mut units).iter();
            shown.extend(units.map(|unit| format!("\\u{unit:04x}")));
        }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    #[test]
    fn json_stays_the_same_value() {
        let value = json!({"a\u{202e}": ["b\nc", "\u{7f}\u{9b}", "\u{e0041}", "ü"]});
        let text = serde_json::to_string_pretty(&value).unwrap();
        let shown = super::json(&text);
        assert!(shown.contains("\\u202e") && shown.contains("\\udb40\\udc41"), "{shown}");
        assert!(!shown.contains(['\u{202e}', '\u{7f}', '\u{9b}']), "{shown}");
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
    }
}
