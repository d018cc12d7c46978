//! Rulesets in real kernels: every test makes a network namespace of its own, which needs root.

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
