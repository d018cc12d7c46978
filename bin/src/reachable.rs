//! The table of loopback addresses at which Services can be reached (userspace mode without
//! privileges).
//!
//! On standard output, each change is a line with a JSON object: a Service port as it is now, or
//! one that is gone, with `"gone": true`. In a file, the table is a JSON array, and the file is
//! replaced as a whole.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
};

use serde::Serialize;
use switchyard_userspace::{Reachable, ShowTable};

/// A line of standard output.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    row: &'a Reachable,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    gone: bool,
}

/// The key of a Service port in the table.
type Key = (String, String, &'static str, &'static str);

fn key(row: &Reachable) -> Key {
    (row.service.clone(), row.port.clone(), row.protocol, row.family)
}

/// Returns the receiver of the table, for a file or standard output. A failure to write is logged.
pub fn show(file: Option<PathBuf>) -> ShowTable {
    let mut printed = BTreeMap::new();
    let write = move |rows: Vec<Reachable>| {
        let written = match &file {
            Some(file) => replace(file, &rows),
            None => print(&rows, &mut printed, &mut io::stdout().lock()),
        };
        if let Err(error) = written {
            tracing::error!(err = %error, "Failed to write the table of loopback addresses");
        }
    };
    ShowTable::new(on_thread(write))
}

/// Returns a function that has `write` called with the newest table, on a thread that the first
/// table starts: a reader of standard output that pauses must not hold up the syncs. Tables that
/// came meanwhile are left out.
fn on_thread(
    write: impl FnMut(Vec<Reachable>) + Send + 'static,
) -> impl Fn(&[Reachable]) + Send + Sync {
    let newest = Arc::<Mutex<Option<Vec<Reachable>>>>::default();
    let (wake, woken) = mpsc::sync_channel(1);
    let theirs = Arc::clone(&newest);
    let take = move || theirs.lock().unwrap_or_else(PoisonError::into_inner).take();
    let body = move || woken.iter().filter_map(|()| take()).for_each(write);
    let not_started = Mutex::new(Some(body));
    move |rows| {
        *newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(rows.to_vec());
        if let Some(body) = not_started.lock().unwrap_or_else(PoisonError::into_inner).take()
            && let Err(error) = thread::Builder::new().name("table".to_owned()).spawn(body)
        {
            tracing::error!(err = %error, "Failed to start the thread that writes the table of loopback addresses");
        }
        // One that is queued already is enough.
        let _ = wake.try_send(());
    }
}

/// Writes the table to a file, which readers see as it was or as it is.
fn replace(file: &Path, rows: &[Reachable]) -> io::Result<()> {
    let mut new = file.as_os_str().to_owned();
    new.push(".new");
    let mut text = serde_json::to_string_pretty(rows)?;
    text.push('\n');
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
    fs::write(&new, text).and_then(|()| fs::rename(&new, file)).map_err(named)
}

/// Writes a line for each row that differs from what was printed.
fn print(
    rows: &[Reachable],
    printed: &mut BTreeMap<Key, Reachable>,
    output: &mut impl Write,
) -> io::Result<()> {
    let now: BTreeMap<Key, Reachable> = rows.iter().map(|row| (key(row), row.clone())).collect();
    for (_, row) in printed.iter().filter(|(key, _)| !now.contains_key(*key)) {
        write_line(row, true, output)?;
    }
    for (key, row) in &now {
        if printed.get(key) != Some(row) {
            write_line(row, false, output)?;
        }
    }
    *printed = now;
    output.flush()
}

fn write_line(row: &Reachable, gone: bool, output: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *output, &Line { row, gone })?;
    output.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, str};

    use super::*;

    fn row(service: &str, endpoints: usize) -> Reachable {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        Reachable {
            service: service.into(),
            port: String::new(),
            protocol: "TCP",
            family: "IPv4",
            cluster_ip: address("10.96.0.1:80"),
            address: address("127.0.0.1:20001"),
            node_port: None,
            endpoints,
        }
    }

    #[test]
    fn changes_are_lines_of_json() {
        let mut printed = BTreeMap::new();
        let mut lines = |rows: &[Reachable]| {
            let mut output = Vec::new();
            print(rows, &mut printed, &mut output).unwrap();
            str::from_utf8(&output).unwrap().to_owned()
        };
        assert_eq!(
            lines(&[row("ns/a", 1)]),
            r#"{"service":"ns/a","port":"","protocol":"TCP","family":"IPv4","clusterIp":"10.96.0.1:80","address":"127.0.0.1:20001","endpoints":1}
"#
        );
        assert_eq!(lines(&[row("ns/a", 1)]), "", "nothing has changed");
        let changed = lines(&[row("ns/a", 2), row("ns/b", 0)]);
        assert_eq!(changed.lines().count(), 2);
        let gone = lines(&[row("ns/a", 2)]);
        assert!(gone.contains(r#""service":"ns/b""#) && gone.contains(r#""gone":true"#), "{gone}");
    }

    #[test]
    fn a_reader_that_pauses_holds_up_nothing_and_has_the_newest_table() {
        let (written, reads) = mpsc::sync_channel(0);
        let show = on_thread(move |rows| written.send(rows).unwrap());
        for endpoints in 1..=9 {
            show(&[row("ns/a", endpoints)]);
        }
        drop(show);
        let tables: Vec<Vec<Reachable>> = reads.iter().collect();
        assert_eq!(tables.last().unwrap(), &[row("ns/a", 9)]);
        assert!(tables.len() <= 2, "{tables:?}");
    }

    #[test]
    fn a_file_has_the_whole_table() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("table.json");
        for rows in [vec![row("ns/a", 1), row("ns/b", 2)], vec![]] {
            replace(&file, &rows).unwrap();
            let read: serde_json::Value =
                serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
            assert_eq!(read, serde_json::to_value(&rows).unwrap());
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left");
        let error = replace(Path::new("/no/where"), &[]).unwrap_err().to_string();
        assert!(error.starts_with("/no/where: No such file"), "{error}");
    }
}
