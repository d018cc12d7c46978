//! Tests against a real kernel and the real programs, in network namespaces of single threads.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod common;
mod leftovers;
mod monitor;
mod programs;
