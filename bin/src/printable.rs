//! Output with names that other programs chose.

use std::{
    borrow::Cow,
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

use switchyard_core::{error::ErrorChain, explain::Printable};

use crate::Failure;

/// Returns the exit status of a command that prints: that of its result, or `failure` after the
/// error on standard error, which begins with `name`. A reader that takes no more, such as `head`,
/// is no failure: what cannot be written is an [`io::Error`], which is no cause of another error.
pub fn ended(name: &str, result: Result<impl Into<ExitCode>, Failure>, failure: u8) -> ExitCode {
    match result {
        Ok(status) => status.into(),
        Err(error) if is_reader_gone(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => {
            // A failure to write to standard error cannot be reported anywhere.
            let _ = writeln!(io::stderr(), "{name}: {}", ErrorChain(error.as_ref()));
            failure.into()
        }
    }
}

fn is_reader_gone(error: &(dyn Error + 'static)) -> bool {
    let written = error.downcast_ref::<io::Error>();
    written.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Returns a number with its noun.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

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
