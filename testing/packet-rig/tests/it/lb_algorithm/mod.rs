//! Spreads and weights where one case with one proxy cannot show them: two nodes, many clients
//! before and after a change, traffic in the meantime, and the tables as nft lists them.

mod changes;
mod cluster;
mod nodes;
mod tables;

use packet_rig::{Place, Probe, Rig, Target, answers, backend, forget_flows};

/// The selected backends that hash a client alike on all nodes. For IPVS, the order counts in which
/// endpoints came.
fn hashing_backends() -> Vec<&'static str> {
    let mut backends = crate::backends();
    backends.retain(|name| !matches!(backend::mode(name), "iptables" | "ipvs"));
    backends
}

/// One of these backends for each mode: a transport makes no difference to a table.
fn hashing_modes() -> Vec<&'static str> {
    let mut backends = hashing_backends();
    backends.dedup_by_key(|name| backend::mode(name));
    backends
}

fn target(text: &str) -> Target {
    text.parse().unwrap()
}

/// The endpoint of each of `ports` source ports of each of the client's 17 addresses. The kernel
/// has forgotten all flows before.
fn choices(rig: &Rig, to: &str, ports: u16) -> Vec<String> {
    forget_flows(&rig.topology.node().namespace).unwrap();
    let client: &Place = rig.topology.client();
    let to = target(to);
    let probe =
        |address, source_port| Probe { source: Some(address), source_port, ..Probe::new(to) };
    let probes: Vec<Probe> = client
        .addresses
        .iter()
        .map(|own| own.of_family(to.address.ip()))
        .flat_map(|address| (0..ports).map(move |port| probe(address, 20_000 + port)))
        .collect();
    answers(client, &probes).unwrap().unwrap()
}
