//! The examples do what they say, and the documentation shows them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::{backend, embed};

/// The time that a machine that is busy may take for a line.
const PATIENCE: Duration = Duration::from_secs(60);

/// The lines that the example `backend` has printed, and no test has taken.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn line() -> String {
    let begun = Instant::now();
    loop {
        let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        if !lines.is_empty() {
            return lines.remove(0);
        }
        drop(lines);
        assert!(begun.elapsed() < PATIENCE, "a line of output");
        thread::sleep(Duration::from_millis(10));
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn an_embedded_proxy_syncs_and_takes_over() {
    test_netns::in_namespace(|| {
        let mut lines = Vec::new();
        embed::run(|line| lines.push(line)).unwrap();
        let [first, change, again] = &lines[..] else { panic!("{lines:?}") };
        assert!(first.starts_with("first lists: added="), "{first}");
        assert!(first.ends_with(" removed=0") && !first.contains("added=0"), "{first}");
        // The slots of the cluster IP and the node port, and the connection of the pod to itself.
        assert_eq!(change, "another pod: added=3 removed=3");
        assert_eq!(again, "started again: added=0 removed=0");
        let left = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
        let left = String::from_utf8_lossy(&left.stdout);
        let chains: Vec<&str> = left.lines().filter(|line| line.contains("chain ")).collect();
        assert_eq!(chains, ["\tchain loopback-guard {"], "nothing else is left");
    });
}

#[test]
fn a_fifth_backend_prints_what_changes() {
    let examples = root().join("examples");
    let directory = tempfile::tempdir().unwrap();
    let manifest = |name: &str| directory.path().join(name);
    fs::copy(examples.join("shop.yaml"), manifest("shop.yaml")).unwrap();

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let followed = directory.path().to_owned();
    // The thread ends with the program.
    thread::spawn(move || {
        let print = |line| LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        runtime.block_on(backend::run(followed, print)).unwrap();
    });
    assert_eq!(line(), "+ default/shop:http (TCP, IPv4)");
    assert_eq!(
        line(),
        "    ClusterIp(10.96.0.30) port 80: Pool { pool: Cluster, masquerade: Never }"
    );
    while !line().starts_with("    endpoint 10.244.2.16") {}

    // Only what has changed is printed.
    fs::copy(examples.join("idle.yaml"), manifest("idle.yaml")).unwrap();
    let added = line();
    assert!(added.starts_with("+ default/idle"), "{added}");
    while !line().contains("Reject") {}

    let shop = fs::read_to_string(manifest("shop.yaml")).unwrap();
    fs::write(manifest("shop.yaml"), shop.replace("10.244.2.16", "10.244.2.17")).unwrap();
    let mut changed = line();
    while !changed.starts_with("~ default/shop") {
        assert!(!changed.contains("default/shop"), "{changed}");
        changed = line();
    }
    while !line().ends_with("endpoint 10.244.2.17:8080") {}

    fs::remove_file(manifest("shop.yaml")).unwrap();
    assert_eq!(line(), "- default/shop:http (TCP, IPv4)");
}

/// The examples that people copy are the one that is tested.
#[test]
fn the_documentation_has_the_example() {
    let program = fs::read_to_string(root().join("switchyard/examples/embed.rs")).unwrap();
    for (page, fence, count) in
        [("docs/embedding.md", "```rust\n", 2), ("switchyard/README.md", "```rust,no_run\n", 1)]
    {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let blocks: Vec<&str> = text.split(fence).skip(1).collect();
        assert_eq!(blocks.len(), count, "{page}");
        for block in blocks {
            let (block, _) = block.split_once("```\n").unwrap();
            // Imports differ.
            let code = &block[block.find("/// ").unwrap()..];
            assert!(program.contains(code), "{page} differs from examples/embed.rs: {code}");
        }
    }
}
