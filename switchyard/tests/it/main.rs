//! The proxy with everything that belongs to it, on the real kernel, and the examples. Needs root,
//! and the programs `ip` and `nft`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

#[path = "../../examples/backend.rs"]
#[allow(dead_code, missing_docs, reason = "an example")]
mod backend;
#[path = "../../examples/embed.rs"]
#[allow(dead_code, missing_docs, reason = "an example")]
mod embed;
mod examples;
mod parts;
