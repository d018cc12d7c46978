//! Tests of the backend against a real kernel, in network namespaces of single threads.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod affinity;
mod common;
mod conformance;
mod foreign;
mod hand_over;
mod lb_algorithms;
mod leftovers;
mod localhost;
mod monitor;
mod probe;
mod refusals;
mod slow_start;
mod source_ranges;
mod sync;
mod tables;
