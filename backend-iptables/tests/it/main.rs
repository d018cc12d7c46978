//! Tests of the backend against a real kernel, in network namespaces of single threads.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod common;
mod conformance;
mod foreign_nft_rules;
mod golden;
mod hand_over;
mod host;
mod namings;
mod sync;
mod weights;
