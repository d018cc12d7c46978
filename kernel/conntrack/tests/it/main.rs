//! The reconciler against the kernel: entries are made through ctnetlink, in network namespaces of
//! the tests' own, which end with their threads. These tests need root.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod endpoints;
mod frontends;
mod lifetime;
mod support;
mod table;
