//! Tests that do not run on this machine.

use std::{
    env,
    fs::OpenOptions,
    io::{self, Write},
    path::Path,
    thread,
};

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
        append(Path::new(&file), &line).expect("the file of skipped tests can be written");
    }
}

/// Adds a line by one system call, so that tests that run at the same time do not mix theirs.
fn append(file: &Path, line: &str) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).open(file)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::{fs, process};

    use super::*;

    #[test]
    fn lines_are_added() {
        let file = env::temp_dir().join(format!("skipped-{}", process::id()));
        append(&file, "p a: no SCTP\n").unwrap();
        append(&file, "p b: no IPVS\n").unwrap();
        let read = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(read, "p a: no SCTP\np b: no IPVS\n");
    }
}
