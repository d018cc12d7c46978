//! The `switchyard` program.
fn main() {}
