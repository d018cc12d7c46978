//! Parts shared by tests of whole syncs: a node with a backend in its own network namespace,
//! and `nft` to look at it and to damage it.

use std::{
    io::Write,
    path::Path,
    process::{Child, Command, Stdio},
};

pub use switchyard_core::testing::{web, web_slice};
use switchyard_core::{
    config::{LocalPodsConfig, NodeConfig},
    testing::{NODE, Stepped, until},
};
use switchyard_kernel::nftables::{
    Key, Operation, Refusal, Transaction, Transport, TransportError, TransportKind,
    testing::{InterceptingTransport, Recorded},
};
use switchyard_nft::{NftConfig, NftProxier};
pub use test_netns::in_namespace;
use test_netns::run_with;

pub type Node = Stepped<NftProxier>;

/// A node of this configuration, in the namespace of this thread.
pub fn start(config: NodeConfig) -> Node {
    Node::new(config, open())
}

/// Runs a test with a node in a namespace of its own.
pub fn with_node<T: Send + Default>(test: impl FnOnce(Node) -> T + Send) -> T {
    in_namespace(|| test(start(config())))
}

/// The backend, on its own transport.
pub fn open() -> NftProxier {
    over(netlink())
}

/// The backend, on this transport.
pub fn over(transport: Box<dyn Transport>) -> NftProxier {
    NftProxier::new(NftConfig::default(), transport)
}

/// The backend, whose transactions a hook sees first.
pub fn intercepted(
    hook: impl FnMut(&Transaction) -> Result<(), TransportError> + Send + 'static,
) -> NftProxier {
    over(Box::new(InterceptingTransport::new(netlink(), hook)))
}

/// A node of this configuration, and what its backend commits.
pub fn recorded(config: NodeConfig) -> (Node, Recorded) {
    let (transport, recorded) = InterceptingTransport::recording(netlink());
    (Node::new(config, over(Box::new(transport))), recorded)
}

pub fn netlink() -> Box<dyn Transport> {
    TransportKind::Netlink.open().expect("netlink is there")
}

/// Refuses the first operation for which `find` returns something: an element, if it names one.
pub fn refused(
    transaction: &Transaction,
    errno: i32,
    find: impl Fn(&Operation) -> Option<Option<Key>>,
) -> Result<(), TransportError> {
    let mut operations = transaction.operations().iter().enumerate();
    let found = operations.find_map(|(at, made)| Some((at, find(made)?)));
    let Some((operation, element)) = found else { return Ok(()) };
    let (subject, reason) = ("do it".to_owned(), "a test".to_owned());
    let element = element.map(Box::new);
    let refusal = Refusal { operation, element, subject, errno: Some(errno), reason };
    Err(TransportError::Refused(refusal, Vec::new()))
}

pub fn fail_if(fails: bool) -> Result<(), TransportError> {
    match fails {
        true => Err(TransportError::Malformed("made to fail by a test".to_owned())),
        false => Ok(()),
    }
}

/// Runs nft on `script`; returns what it prints.
pub fn nft(script: &str) -> String {
    run_nft("nft".as_ref(), script)
}

/// Runs the nft at `program` on `script`; returns what it prints.
pub fn run_nft(program: &Path, script: &str) -> String {
    run_with(&format!("{} -f -", program.display()), script)
}

/// A program that owns a table, which goes with it: others can read the table and change nothing.
pub struct Owner(Child);

impl Owner {
    /// Starts the program, which adds the only table of an owner by this command.
    pub fn of(command: &str) -> Self {
        let mut nft = Command::new("nft");
        let mut nft =
            nft.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("nft");
        let input = nft.stdin.as_mut().expect("piped");
        writeln!(input, "{command}").expect("nft reads");
        let owner = Self(nft);
        until("the table has an owner", || self::nft("list ruleset").contains("flags owner"));
        owner
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Both tables, in this order whichever was made first.
pub fn ruleset() -> String {
    nft("list table ip kube-proxy") + &nft("list table ip6 kube-proxy")
}

pub fn config() -> NodeConfig {
    let mut made = NodeConfig::new(NODE);
    made.local_pods = LocalPodsConfig::NodeCidr;
    made
}

/// The name of the map that remembers the clients of the only Service with affinity.
pub fn clients() -> String {
    let listed = ruleset();
    let line = listed.lines().find(|line| line.contains("map clients-")).expect("a map");
    line.trim().trim_start_matches("map ").trim_end_matches(" {").to_owned()
}
