//! ipvs mode: what IPVS, the device and the parameters of the kernel hold. Packets are the subject
//! of the cases; here are defects that kube-proxy's ipvs mode has or had, and what other programs
//! change.
//!
//! The tests run where `SWITCHYARD_BACKENDS` names `ipvs`: in the virtual machine of
//! `make test-ipvs`.

mod connections;
mod others;
mod schedulers;
mod settings;
mod starts;

use std::{
    fmt, mem, thread,
    time::{Duration, Instant},
};

use packet_rig::{
    Case, Rig, backend,
    case::MANIFESTS,
    objects::{service, slice},
    wait::scaled,
};

/// A virtual server, as `/proc/net/ip_vs` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    /// Protocol, and address and port in hexadecimal numbers.
    at: String,
    /// The scheduler and the flags.
    scheduler: String,
    /// Address and port in hexadecimal numbers, the weight, and the number of connections.
    reals: Vec<(String, u32, u32)>,
}

/// Prints them as a person would want to read them in the message of a failure.
struct Servers(Vec<Server>);

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|server| writeln!(f, "{server:?}"))
    }
}

/// Returns the virtual servers of the node.
fn servers(rig: &Rig) -> Vec<Server> {
    let node = &rig.topology.node().namespace;
    let text = node.output("cat", &["/proc/net/ip_vs"], "").unwrap();
    let mut servers: Vec<Server> = Vec::new();
    for line in text.lines().skip(3) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (words.as_slice(), servers.last_mut()) {
            (["->", real, _, weight, active, inactive], Some(server)) => {
                let number = |text: &str| text.parse::<u32>().unwrap();
                let connections = number(active) + number(inactive);
                server.reals.push(((*real).to_owned(), number(weight), connections));
            }
            ([protocol, address, rest @ ..], _) => servers.push(Server {
                at: format!("{protocol} {address}"),
                scheduler: rest.join(" "),
                reals: Vec::new(),
            }),
            _ => panic!("{line:?}"),
        }
    }
    servers
}

/// Returns the weights of the real servers of a virtual server, which are sorted by address.
fn weights(rig: &Rig, at: &str) -> Vec<u32> {
    let mut found = servers(rig).into_iter().find(|server| server.at == at);
    let reals = found.as_mut().map(|server| {
        server.reals.sort();
        mem::take(&mut server.reals)
    });
    reals.unwrap_or_default().into_iter().map(|(_, weight, _)| weight).collect()
}

/// The addresses of Services that the node takes for its own.
fn addresses(rig: &Rig) -> Vec<String> {
    let node = &rig.topology.node().namespace;
    let text = node.output("ip", &["-brief", "address", "show", "dev", "kube-ipvs0"], "").unwrap();
    let words = text.split_whitespace().filter(|word| word.contains('/'));
    words.filter(|word| !word.starts_with("fe80")).map(str::to_owned).collect()
}

/// Starts the node with these manifests and more fields of the configuration. `None` if ipvs mode
/// is not tested here: the test is recorded as skipped then.
fn start(name: &str, manifests: &str, config: &str) -> Option<Rig> {
    if !backend::selected().unwrap().contains(&"ipvs") {
        test_netns::skipped("ipvs is no selected backend");
        return None;
    }
    let case = Case {
        name: name.to_owned(),
        manifests: manifests.to_owned(),
        config: Some(config.to_owned()),
        args: vec!["-v=2".to_owned()],
        cluster_cidr: true,
        ..Case::default()
    };
    Some(Rig::start(&case, "ipvs").unwrap())
}

/// Writes the manifests anew.
fn apply(rig: &Rig, manifests: &str) {
    rig.write(MANIFESTS, manifests).unwrap();
}

/// Waits until it is so, and fails with what there is if it never is.
fn wait(rig: &Rig, what: &str, is_so: impl FnMut() -> bool) {
    wait_for(Duration::from_secs(10), rig, what, is_so);
}

/// Waits for so long, [`scaled`], until it is so, and fails with what there is if it never is.
fn wait_for(patience: Duration, rig: &Rig, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + scaled(patience);
    while !is_so() {
        assert!(
            Instant::now() < deadline,
            "{what}\n{}{:?}\n{}",
            Servers(servers(rig)),
            addresses(rig),
            rig.proxy.log()
        );
        thread::sleep(Duration::from_millis(100));
    }
}

/// A Service `web` with a fixed cluster IP, more fields of its `spec`, and these addresses as
/// endpoints.
fn web(annotations: &str, spec: &str, endpoints: &[&str]) -> String {
    service("web", annotations, &format!("clusterIP: 10.96.0.10, {spec}ports: [{{port: 80}}]"))
        + &slice("web", "{name: '', port: 8080}", endpoints)
}

/// The virtual server of [`web`].
const WEB: &str = "TCP 0A60000A:0050";

/// The pods of the other node.
const C: &str = "10.244.2.10";
const D: &str = "10.244.2.11";
