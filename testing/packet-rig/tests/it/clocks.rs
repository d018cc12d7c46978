//! Below the program, nothing waits by the clock of the wall, which may be set forward or back.

use std::{collections::BTreeSet, fs};

use super::{documents::sources, semantics::root};

/// The files that read the time of day, for what is shown or was promised in it.
const READERS: [&str; 4] = [
    // A first sequence number.
    "kernel/netlink/src/socket.rs",
    // The expiration of a plugin's credentials, from which a time to wait is derived once.
    "sources/kube/src/client/plugin.rs",
    // The times that /healthz shows; timeouts are those of a monotonic clock.
    "switchyard/src/builder.rs",
    "switchyard/src/health/proxy.rs",
];

#[test]
fn nothing_waits_by_the_time_of_day() {
    let crates =
        ["backend-", "forwarder", "kernel", "model", "proxy-core", "sources", "switchyard"];
    let mut paths = Vec::new();
    sources(&root(), &mut paths);
    let mut readers = BTreeSet::new();
    for path in paths {
        let name = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
        let is_of_product = crates.iter().any(|of| name.starts_with(of)) && name.contains("/src/");
        if !is_of_product || ["/testing/", "/tests"].iter().any(|part| name.contains(part)) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let is_reader = ["SystemTime::now(", "Timestamp::now(", "Zoned::now(", "Utc::now("]
            .iter()
            .any(|call| code.contains(call));
        if is_reader {
            readers.insert(name);
        }
    }
    let known = READERS.map(str::to_owned);
    assert_eq!(readers, BTreeSet::from(known), "a timer must not depend on the time of day");
}
