//! Text with names that other programs chose.

use std::fmt::{self, Write};

/// Text with names of objects, chains or programs, in which what could forge other text is escaped:
/// control characters, line feeds among them, and characters that are not seen, such as those that
/// change the direction of text.
pub struct Printable<'a>(pub &'a str);

impl Printable<'_> {
    /// Whether a character is shown as it is.
    pub fn shows(c: char) -> bool {
        // Control characters (Cc), and those that are not seen, of the categories Cf, Zl and Zp.
        !(c.is_control()
            || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
            || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
            || matches!(c, '\u{e0000}'..='\u{e007f}'))
    }
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match Self::shows(c) {
            true => f.write_char(c),
            false => write!(f, "{}", c.escape_default()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_forges_lines_or_turns_text() {
        for (text, expected) in [
            ("web-1 \"ü\" ☸", "web-1 \"ü\" ☸"),
            ("a\nb\r\tc\u{1b}[2J", "a\\nb\\r\\tc\\u{1b}[2J"),
            ("a\u{202e}b\u{2066}c\u{2028}d", "a\\u{202e}b\\u{2066}c\\u{2028}d"),
            ("\u{85}\u{200f}\u{feff}\u{e0041}", "\\u{85}\\u{200f}\\u{feff}\\u{e0041}"),
        ] {
            assert_eq!(Printable(text).to_string(), expected);
        }
    }
}
