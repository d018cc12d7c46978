//! The views of the board: lines of styled text, the same for a terminal and for a pipe.

mod bar;
mod frame;
mod line;
mod motion;
mod summary;

pub use self::{
    bar::Glyphs,
    frame::{frame, services},
    line::{Line, Style},
    motion::Motion,
    summary::summary,
};

/// A number with its thousands set apart.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1000, "1,000"), (12_345, "12,345"), (1_234_567, "1,234,567")]
        {
            assert_eq!(thousands(number), text);
        }
    }
}
