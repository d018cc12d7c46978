//! Rulesets in real kernels: every test makes its own network namespace, which needs root.

mod dumps;
mod errors;
mod foreign;
mod json;
mod listener;
mod listings;
mod sizes;
mod slots;
mod support;
