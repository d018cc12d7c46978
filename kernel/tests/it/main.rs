//! The kernel's answers. Every test makes its own network namespace, which needs root.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod conntrack;
mod ipset;
mod ipvs;
mod nftables;
mod route;
mod xtables;
