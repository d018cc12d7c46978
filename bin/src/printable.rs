//! Text for a terminal with names that other programs chose.

use std::{
    fmt,
    io::{self, Write},
};

/// Text with names of objects, chains or programs, whose control characters are escaped.
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c.is_control() {
            true => write!(f, "{}", c.escape_default()),
            false => write!(f, "{c}"),
        })
    }
}

/// Prints lines with such names to standard output.
///
/// # Errors
/// If standard output cannot be written to.
pub fn print_lines(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    text.lines().try_for_each(|line| writeln!(output, "{}", Printable(line)))
}
