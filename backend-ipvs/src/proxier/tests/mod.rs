//! Syncs against a model of the kernel.

mod any_story;
mod cases;
mod model;
