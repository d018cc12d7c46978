//! IP sets.

mod entries;
mod sets;
mod support;
