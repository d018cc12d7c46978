//! The time that Services take to get into IPVS, beside the floor: the same commands and addresses,
//! sent to the kernel by the crates that speak to it, in the same run.
//!
//! `cargo bench -p switchyard-ipvs [-- SERVICES ENDPOINTS]`, as root, on a kernel with IPVS:
//! everything happens in network namespaces of its own threads. Where the kernel has none,
//! `cargo --config "target.'cfg(all())'.runner=['$PWD/testing/vm/run.sh']" bench -p switchyard-ipvs`
//! measures in an emulated machine, where only the proportions mean something. Times are medians.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "benches fail by panics")]

use std::{net::IpAddr, path::Path, process::Command, time::Duration};

use switchyard_core::{
    model::PerFamily,
    objects::{Event, Object},
    proxier::{Backend, Proxier},
    state::State,
    testing::{
        ManyServices, Stepped,
        bench::{cluster_from_arguments, median, report, resolved, show, time},
    },
};
use switchyard_ipvs::{IpvsBackend, IpvsConfig};
use switchyard_kernel::{
    ipvs::{Batch, Ipvs, RealServer, Selector, VirtualServer},
    route::DummyDevice,
};

/// Runs work in a network namespace that has an address, without which the kernel takes no address
/// of IPv4 for one of a real server.
fn in_namespace<T: Send + Default>(work: impl FnOnce() -> T + Send) -> T {
    test_netns::in_namespace(|| {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.expect("the program ip").success());
        work()
    })
}

/// Repetitions of a change.
const CHANGE_ROUNDS: usize = 9;
/// Repetitions of the first programming.
const FIRST_ROUNDS: usize = 3;

fn main() {
    if !Path::new("/proc/net/ip_vs").exists() {
        println!("the kernel has no IPVS");
        return;
    }
    let many = cluster_from_arguments();
    println!("{} Services x {} endpoints, ipvs", many.services, many.endpoints);
    let (first, floor): (Vec<_>, Vec<_>) =
        (0..FIRST_ROUNDS).map(|_| (first_programming(&many), first_floor(&many))).unzip();
    let target = median(floor.clone()) * 2;
    report("first programming", first, floor, target, 1);
    let times = changes(&many);
    let target = |floor: &[Duration]| median(floor.to_vec()) * 4;
    let (change, addition) = (target(&times.change_floor), target(&times.addition_floor));
    report("one EndpointSlice change", times.changes, times.change_floor, change, 2);
    report("one Service more", times.additions, times.addition_floor, addition, 2);
    println!("{:<28}{:>12}", "nothing differs, compared", show(median(times.comparisons), 1));
    println!("{:<28}{:>12}", "the longest part of that", show(median(times.parts), 1));
}

/// The times of changes of a cluster that is programmed.
#[derive(Default)]
struct Times {
    changes: Vec<Duration>,
    change_floor: Vec<Duration>,
    additions: Vec<Duration>,
    addition_floor: Vec<Duration>,
    comparisons: Vec<Duration>,
    parts: Vec<Duration>,
}

/// A node that knows the cluster, and has synced nothing.
fn node(many: &ManyServices) -> Stepped<Box<dyn Proxier>> {
    let mut config = IpvsConfig::default();
    config.families = PerFamily { v4: true, v6: false };
    let mut node = Stepped::new(
        many.node(),
        IpvsBackend::new(config).probe().expect("IPVS").open().expect("IPVS"),
    );
    node.apply(many.lists());
    node
}

fn first_programming(many: &ManyServices) -> Duration {
    in_namespace(|| {
        let mut node = node(many);
        time(|| node.try_sync().expect("a first sync"))
    })
}

/// The messages sent to the kernel for Services, and nothing else.
struct Floor {
    ipvs: Ipvs,
    device: DummyDevice,
}

impl Floor {
    fn open() -> Self {
        let mut floor = Self {
            ipvs: Ipvs::open().unwrap().unwrap(),
            device: DummyDevice::open("floor").unwrap(),
        };
        floor.device.ensure().unwrap();
        floor
    }

    fn send(&mut self, servers: &Batch, addresses: &[IpAddr]) -> Duration {
        time(|| {
            assert_eq!(self.ipvs.commit(servers).unwrap(), []);
            self.device.change(addresses, &[]).unwrap();
        })
    }
}

/// The commands for the Services of a state whose addresses `is_wanted`.
fn commands(state: &State, is_wanted: impl Fn(IpAddr) -> bool) -> (Batch, Vec<IpAddr>) {
    let (mut servers, mut addresses) = (Batch::default(), Vec::new());
    for port in state.service_ports.values() {
        for frontend in &port.frontends {
            let Some(ip) = frontend.at.ip().filter(|ip| is_wanted(*ip)) else { continue };
            let protocol = port.id.name.protocol.number();
            let selector = Selector::Address { protocol: protocol.into(), ip, port: frontend.port };
            servers.add_server(&virtual_server(selector));
            for endpoint in port.cluster.iter() {
                servers.add_real(&selector, &RealServer::new(endpoint.address, 1));
            }
            addresses.push(ip);
        }
    }
    (servers, addresses)
}

fn virtual_server(selector: Selector) -> VirtualServer {
    VirtualServer { selector, scheduler: "rr".into(), flags: 0, timeout: 0, netmask: u32::MAX }
}

fn first_floor(many: &ManyServices) -> Duration {
    let (servers, addresses) = commands(&resolved(many), |_| true);
    in_namespace(|| Floor::open().send(&servers, &addresses))
}

/// Measures changes of a cluster that is programmed, and the same changes by hand.
fn changes(many: &ManyServices) -> Times {
    in_namespace(|| {
        let mut node = node(many);
        node.try_sync().expect("a first sync");
        let mut floor = Floor::open();
        let mut times = Times::default();
        let mut apply = |objects: Vec<Object>| {
            let events: Vec<Event> = objects.into_iter().map(Event::Apply).collect();
            time(|| node.sync(events))
        };
        let selector =
            Selector::Address { protocol: 6, ip: IpAddr::from([10, 250, 0, 1]), port: 1 };
        let mut made = Batch::default();
        made.add_server(&virtual_server(selector));
        made.add_real(&selector, &RealServer::new(([10, 9, 0, 0], 80).into(), 1));
        floor.send(&made, &[]);
        for round in 0..CHANGE_ROUNDS {
            // The last endpoint is replaced by another one.
            times.changes.push(apply(vec![many.slice(round * 31 % many.services, round + 1)]));
            let real = |round: usize| RealServer::new(([10, 9, 0, round as u8], 80).into(), 1);
            let mut change = Batch::default();
            change.add_real(&selector, &real(round + 1));
            change.edit_real(&selector, &RealServer { weight: 0, ..real(round) });
            times.change_floor.push(floor.send(&change, &[]));
        }
        for round in 0..CHANGE_ROUNDS {
            let i = many.services + round;
            times.additions.push(apply(vec![many.service(i), many.slice(i, 0)]));
            let mut servers = Batch::default();
            let ip = IpAddr::from([10, 251, 0, round as u8]);
            let selector = Selector::Address { protocol: 6, ip, port: 80 };
            servers.add_server(&virtual_server(selector));
            for n in 0..many.endpoints {
                servers.add_real(&selector, &RealServer::new(([10, 8, 0, n as u8], 80).into(), 1));
            }
            times.addition_floor.push(floor.send(&servers, &[ip]));
        }
        times.comparisons = (0..3).map(|_| time(|| node.full())).collect();
        times.parts = (0..3).map(|_| longest_part(&mut node)).collect();
        times
    })
}

/// Compares everything in parts, and returns the time of the longest.
fn longest_part(node: &mut Stepped<Box<dyn Proxier>>) -> Duration {
    node.tracker.request_checkup();
    let (mut longest, mut is_over) = (Duration::ZERO, false);
    while !is_over {
        longest = longest.max(time(|| {
            let report = node.try_sync().expect("a sync");
            is_over = report.requeue_after != Some(Duration::ZERO);
        }));
    }
    longest
}
