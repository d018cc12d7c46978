//! The targets with inputs that were recorded, and that were changed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod mutations;
mod record;
