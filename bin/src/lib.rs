//! The parts of the `switchyard` program, as a library so that tests can reach them.

pub mod source;
