//! Tests that do not run on this machine.

use std::{env, fs::OpenOptions, io::Write, thread};

/// The variable that names the file with a line for each test that was skipped, which `make test`
/// compares with `testing/skipped.txt`.
const FILE: &str = "SWITCHYARD_SKIPPED";

/// Records that this test is skipped, and why. For tests of the standard harness, whose name is
/// that of the thread.
///
/// # Panics
///
/// If the file of skipped tests cannot be written.
pub fn skipped(reason: &str) {
    skipped_test(thread::current().name().unwrap_or("?"), reason);
}

/// Records that the test `name` is skipped, and why.
///
/// # Panics
///
/// If the file of skipped tests cannot be written.
pub fn skipped_test(name: &str, reason: &str) {
    // Cargo sets the variable for the tests that it runs.
    let package = env::var("CARGO_PKG_NAME").unwrap_or_else(|_| "?".to_owned());
    let line = format!("{package} {name}: {reason}\n");
    print!("skipped: {line}");
    if let Some(file) = env::var_os(FILE) {
        // By one system call, so that tests that run at the same time do not mix their lines.
        let opened = OpenOptions::new().create(true).append(true).open(file);
        let added = opened.and_then(|mut file| file.write_all(line.as_bytes()));
        added.expect("the file of skipped tests can be written");
    }
}
