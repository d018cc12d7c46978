//! klog's text: `I1121 09:08:59.667744    1234 file.rs:12] "Message" err="why" key="value"`

use std::{
    fmt::{self, Write},
    process,
};

use jiff::Zoned;
use serde_json::Value;
use tracing::{Event, Level};

use crate::klog::fields::{Fields, is_line, place};

/// Writes an event in the text format of klog.
pub(super) fn write_event(line: &mut impl Write, event: &Event<'_>) -> fmt::Result {
    let metadata = event.metadata();
    let severity = match *metadata.level() {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    };
    let time = Zoned::now().strftime("%m%d %H:%M:%S%.6f").to_string();
    write!(line, "{severity}{time} {:>7} {}] ", process::id(), place(metadata, 0))?;
    let fields = Fields::from_event(event);
    if is_line(metadata) {
        return writeln!(line, "{}", fields.message);
    }
    quote(line, &fields.message)?;
    let err = fields.err.map(|err| ("err", err));
    for (key, value) in err.into_iter().chain(fields.rest) {
        write!(line, " {key}=")?;
        match value {
            Value::String(text) => write_text(line, &text)?,
            other => write!(line, "{other}")?,
        }
    }
    writeln!(line)
}

/// Writes the value of a text field: a single line quoted, several lines indented and unquoted.
fn write_text(to: &mut impl Write, text: &str) -> fmt::Result {
    if !text.contains('\n') {
        return quote(to, text);
    }
    // klog's format does not show whether the text ends with a line break.
    let lines = text.strip_suffix('\n').unwrap_or(text);
    to.write_str("<\n")?;
    for line in lines.split('\n') {
        writeln!(to, "\t{line}")?;
    }
    to.write_str(" >")
}

/// Writes text as a Go string literal, whose escapes differ from Rust's.
pub(crate) fn quote(to: &mut impl Write, text: &str) -> fmt::Result {
    to.write_char('"')?;
    for character in text.chars() {
        match character {
            '"' => to.write_str("\\\""),
            '\\' => to.write_str("\\\\"),
            '\u{7}' => to.write_str("\\a"),
            '\u{8}' => to.write_str("\\b"),
            '\u{c}' => to.write_str("\\f"),
            '\n' => to.write_str("\\n"),
            '\r' => to.write_str("\\r"),
            '\t' => to.write_str("\\t"),
            '\u{b}' => to.write_str("\\v"),
            ' '..='~' => to.write_char(character),
            '\0'..='\u{7f}' => write!(to, "\\x{:02x}", character as u32),
            _ if is_printable(character) => to.write_char(character),
            '\u{10000}'.. => write!(to, "\\U{:08x}", character as u32),
            _ => write!(to, "\\u{:04x}", character as u32),
        }?;
    }
    to.write_char('"')
}

/// Whether a character that is not ASCII is printable, by the tables of Rust's own escapes.
fn is_printable(character: char) -> bool {
    // Combining marks are printable only after another character.
    let pair = String::from_iter(['a', character]);
    pair.escape_debug().nth(1) == Some(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        let mut to = String::new();
        write_text(&mut to, text).unwrap();
        to
    }

    #[test]
    fn text_is_quoted_as_go_quotes_it() {
        for (text, expected) in [
            ("", r#""""#),
            ("it's \"so\" \\", r#""it's \"so\" \\""#),
            ("\t\r\u{7}\u{8}\u{b}\u{c}", r#""\t\r\a\b\v\f""#),
            ("\0\u{1b}[0m\u{7f}", r#""\x00\x1b[0m\x7f""#),
            ("ä–日e\u{301}", "\"ä–日e\u{301}\""),
            ("\u{a0}\u{85}\u{200b}\u{feff}", r#""\u00a0\u0085\u200b\ufeff""#),
            ("\u{1f600}\u{e0001}", "\"\u{1f600}\\U000e0001\""),
        ] {
            assert_eq!(written(text), expected, "{text:?}");
        }
    }

    #[test]
    fn many_lines_are_indented() {
        assert_eq!(written("one\n\"two\""), "<\n\tone\n\t\"two\"\n >");
        assert_eq!(written("one\n\ntwo\n"), "<\n\tone\n\t\n\ttwo\n >");
        assert_eq!(written("\n"), "<\n\t\n >");
    }
}
