//! The configuration as others meet it: any text that is read, and the table of flags.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod config_corpus;
mod flags;
