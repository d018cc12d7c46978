//! Errors as text: an error with everything that caused it, for a line of a log.
//!
//! The text of an error leaves its cause out, which [`Error::source`] returns. [`ErrorChain`] joins
//! the two again where an error is logged or shown.

use std::{
    error::Error,
    fmt::{self, Display, Formatter},
};

/// An error with its causes: `Display` prints the error and every cause, joined by ": ".
///
/// A cause whose text ends the text so far is left out: some errors of other libraries print their
/// cause themselves.
#[derive(Clone, Copy, Debug)]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'static));

impl Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let mut source = self.0.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.ends_with(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            source = cause.source();
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Step {
        text: &'static str,
        source: Option<Box<dyn Error + Send + Sync>>,
    }

    fn step(text: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Step {
        Step { text, source: Some(source.into()) }
    }

    #[test]
    fn causes_follow_their_error() {
        let cause = io::Error::other("no such file");
        let error = step("cannot start", step("cannot read the configuration", cause));
        assert_eq!(
            ErrorChain(&error).to_string(),
            "cannot start: cannot read the configuration: no such file"
        );
        let alone = Step { text: "cannot start", source: None };
        assert_eq!(ErrorChain(&alone).to_string(), "cannot start");
    }

    #[test]
    fn a_cause_that_was_printed_already_is_left_out() {
        let cause = step("connection refused", io::Error::other("os error 111"));
        let error = step("cannot connect: connection refused", cause);
        assert_eq!(
            ErrorChain(&error).to_string(),
            "cannot connect: connection refused: os error 111"
        );
    }
}
