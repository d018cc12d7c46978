//! The examples do what they say. `embed` needs root, and the program `ip`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

use std::{
    error::Error,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use packet_rig::NetNs;

/// How long a machine that is busy may take for a line.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that runs until the value is dropped.
struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            BufReader::new(stdout)
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line of output")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder of the examples.
fn examples() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn an_embedded_engine_syncs_and_takes_over() -> Result<(), Box<dyn Error>> {
    let namespace = NetNs::new_bare()?;
    let output = namespace.output(env!("CARGO_BIN_EXE_embed"), &[], "")?;
    let lines: Vec<_> = output.lines().collect();
    let [first, change, again, cleaned_up] = lines[..] else { panic!("{output}") };

    assert!(first.starts_with("first lists: added="), "{first}");
    assert!(first.ends_with(" removed=0") && !first.contains("added=0"), "{first}");
    // The slots of the cluster IP and the node port, and the connection of the pod to itself.
    assert_eq!(change, "another pod: added=3 removed=3");
    assert_eq!(again, "started again: added=0 removed=0");
    assert_eq!(cleaned_up, "cleaned up");
    assert_eq!(namespace.output("nft", &["list", "tables"], "")?, "", "nothing is left");
    Ok(())
}

#[test]
fn a_fifth_backend_prints_what_changes() {
    let directory = tempfile::tempdir().unwrap();
    let manifest = |name: &str| directory.path().join(name);
    fs::copy(examples().join("shop.yaml"), manifest("shop.yaml")).unwrap();

    let program = Running::start(Command::new(env!("CARGO_BIN_EXE_backend")).arg(directory.path()));
    assert_eq!(program.line(), "+ default/shop:http (TCP, IPv4)");
    assert_eq!(
        program.line(),
        "    ClusterIp(10.96.0.30) port 80: Pool { pool: Cluster, masquerade: Never }"
    );
    let mut line = program.line();
    while !line.starts_with("    endpoint 10.244.2.16") {
        line = program.line();
    }

    // Only what has changed is printed.
    let text = fs::read_to_string(examples().join("idle.yaml")).unwrap();
    fs::write(manifest("idle.yaml"), text).unwrap();
    let added = program.line();
    assert!(added.starts_with("+ default/idle"), "{added}");
    while !program.line().contains("Reject") {}

    let shop = fs::read_to_string(manifest("shop.yaml")).unwrap();
    fs::write(manifest("shop.yaml"), shop.replace("10.244.2.16", "10.244.2.17")).unwrap();
    let mut line = program.line();
    while !line.starts_with("~ default/shop") {
        assert!(!line.contains("default/shop"), "{line}");
        line = program.line();
    }
    while !program.line().ends_with("endpoint 10.244.2.17:8080") {}

    fs::remove_file(manifest("shop.yaml")).unwrap();
    assert_eq!(program.line(), "- default/shop:http (TCP, IPv4)");
}

/// The example that people copy is the one that is tested.
#[test]
fn the_documentation_has_the_example() {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    let document = read(examples().join("../docs/embedding.md"));
    let program = read(examples().join("embed.rs"));
    // What comes before is the file's own documentation.
    let (_, code) = program.split_once("\n\n").unwrap();
    let (_, block) = document.split_once("```rust\n").unwrap();
    let (block, _) = block.split_once("```\n").unwrap();
    assert!(block == code, "copy examples/embed.rs, below its first comment, to docs/embedding.md");
}
