//! The views of the board: lines of styled text, the same for a terminal and for a pipe.

use std::time::Duration;

mod bar;
mod figures;
mod frame;
mod line;
mod motion;

pub use self::{
    bar::Glyphs,
    figures::{changes, failures, figure, held, hint, services_table, verdict},
    frame::{frame, services},
    line::{Line, Style},
    motion::Motion,
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

/// A duration in milliseconds, for people.
pub fn ms(duration: Duration) -> String {
    let milliseconds = duration.as_secs_f64() * 1000.0;
    match milliseconds {
        100.0.. => format!("{milliseconds:.0} ms"),
        _ => format!("{milliseconds:.1} ms"),
    }
}

/// A duration in seconds, for people.
pub fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
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

    #[test]
    fn milliseconds_are_as_exact_as_they_need_to_be() {
        assert_eq!(ms(Duration::from_micros(4_560)), "4.6 ms");
        assert_eq!(ms(Duration::from_micros(123_456)), "123 ms");
    }
}
