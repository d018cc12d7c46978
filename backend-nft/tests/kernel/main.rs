//! Rulesets in real kernels: every test makes a network namespace of its own, which needs root.

mod dumps;
mod errors;
mod json;
mod listings;
mod sizes;
mod support;
