//! Bars, drawn in eighths of a column where the terminal can.

/// The characters to draw with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glyphs {
    /// From an eighth of a column to a whole one, or only a whole one.
    blocks: &'static [char],
    /// The character after a bar.
    track: char,
    /// From a client to a frontend.
    pub arrow: &'static str,
    /// The separator of two remarks.
    pub dot: &'static str,
    /// A horizontal line.
    pub rule: char,
}

impl Glyphs {
    /// For terminals with Unicode.
    pub const UNICODE: Self = Self {
        blocks: &['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'],
        track: '·',
        arrow: "→",
        dot: "·",
        rule: '─',
    };

    /// For other terminals.
    pub const ASCII: Self = Self { blocks: &['#'], track: ' ', arrow: "->", dot: "-", rule: '-' };

    /// A bar of this share of `width` columns, filled up to `width`.
    pub fn bar(&self, share: f64, width: usize) -> (String, String) {
        let steps = self.blocks.len();
        // The share is clamped, so the product is a small positive number. NaN becomes 0.
        let length = (share.clamp(0.0, 1.0) * (width * steps) as f64).round() as usize;
        let (whole, rest) = (length / steps, length % steps);
        let full = self.blocks[steps - 1];
        let mut bar: String = std::iter::repeat_n(full, whole).collect();
        if rest > 0 {
            bar.push(self.blocks[rest - 1]);
        }
        let used = whole + usize::from(rest > 0);
        (bar, std::iter::repeat_n(self.track, width - used).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_the_length_of_their_share() {
        let bar = |share| Glyphs::UNICODE.bar(share, 4);
        for (share, bar_text, track) in [
            (0.0, "", "····"),
            (0.5, "██", "··"),
            (0.25, "█", "···"),
            (1.0, "████", ""),
            (0.375, "█▌", "··"),
            (1.0 / 32.0, "▏", "···"),
            (31.0 / 32.0, "███▉", ""),
        ] {
            assert_eq!(bar(share), (bar_text.to_owned(), track.to_owned()), "{share}");
        }
        assert_eq!(Glyphs::ASCII.bar(0.5, 4), ("##".to_owned(), "  ".to_owned()));
    }

    #[test]
    fn bars_never_leave_their_columns() {
        for glyphs in [Glyphs::UNICODE, Glyphs::ASCII] {
            for share in [-1.0, 0.0, 0.001, 0.499, 0.999, 1.0, 7.0, f64::NAN, f64::INFINITY] {
                for width in [0, 1, 38] {
                    let (bar, track) = glyphs.bar(share, width);
                    assert_eq!(bar.chars().count() + track.chars().count(), width);
                }
            }
        }
    }
}
