//! Rulesets in real kernels: every test makes its own network namespace, which needs root.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod dumps;
mod errors;
mod foreign;
mod json;
mod listener;
mod listings;
mod sizes;
mod slots;
mod support;
mod tables;
