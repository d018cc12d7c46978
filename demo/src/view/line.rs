//! A line of styled text with its width.
//!
//! Every character that the demo draws takes one column.

/// The style of a piece of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// The usual style.
    Plain,
    /// Important.
    Bold,
    /// Less important.
    Dim,
    /// Belongs to the node that the proxy runs on.
    Near,
    /// Belongs to another node.
    Far,
    /// New, or well.
    Good,
    /// Wrong, or refused.
    Bad,
    /// The title.
    Title,
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    spans: Vec<(Style, String)>,
    width: usize,
}

impl Line {
    /// An empty line.
    pub fn new() -> Self {
        Self::default()
    }

    /// The line with more text.
    pub fn with(mut self, style: Style, text: impl Into<String>) -> Self {
        self.push(style, text);
        self
    }

    /// Adds text.
    pub fn push(&mut self, style: Style, text: impl Into<String>) {
        let text = text.into();
        self.width += text.chars().count();
        self.spans.push((style, text));
    }

    /// Adds text that ends in this column, with at least one blank before it.
    pub fn push_right(&mut self, style: Style, text: &str, column: usize) {
        let own = text.chars().count();
        let blanks = column.saturating_sub(self.width + own).max(1);
        self.push(Style::Plain, " ".repeat(blanks));
        self.push(style, text);
    }

    /// The width in columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The pieces.
    pub fn spans(&self) -> &[(Style, String)] {
        &self.spans
    }

    /// The line, cut off at this column.
    pub fn clipped(mut self, columns: usize) -> Self {
        let mut left = columns;
        for (_, text) in &mut self.spans {
            let end = text.char_indices().nth(left).map_or(text.len(), |(at, _)| at);
            text.truncate(end);
            left -= text.chars().count();
        }
        self.spans.retain(|(_, text)| !text.is_empty());
        self.width = self.width.min(columns);
        self
    }

    /// The text alone.
    pub fn text(&self) -> String {
        let text: String = self.spans.iter().map(|(_, text)| text.as_str()).collect();
        text.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_clipped_by_characters() {
        let line = Line::new().with(Style::Bold, "a→b").with(Style::Dim, "██");
        assert_eq!(line.width(), 5);
        for (columns, text) in [(0, ""), (2, "a→"), (3, "a→b"), (4, "a→b█"), (9, "a→b██")]
        {
            let clipped = line.clone().clipped(columns);
            assert_eq!(clipped.text(), text);
            assert_eq!(clipped.width(), text.chars().count());
        }
    }

    #[test]
    fn text_at_the_right_ends_in_its_column() {
        let mut line = Line::new().with(Style::Plain, "left");
        line.push_right(Style::Plain, "right", 12);
        assert_eq!(line.text(), "left   right");
        line.push_right(Style::Plain, "more", 12);
        assert_eq!(line.text(), "left   right more", "never without a blank");
    }
}
