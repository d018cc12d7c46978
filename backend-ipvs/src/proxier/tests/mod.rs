//! Syncs against a model of the kernel.

mod any_story;
mod cases;
mod model;
mod refusals;
mod schedulers;

use std::net::IpAddr;

use switchyard_core::{
    objects::Event,
    testing::{NODE, Stepped, endpoint, service, slice},
};
use switchyard_kernel::ipvs::Selector;

use self::model::Model;
use crate::{IpvsConfig, proxier::IpvsProxier};

fn node(model: &Model) -> Stepped<IpvsProxier> {
    model.node(IpvsConfig::default())
}

/// A kernel, and a node that has synced nothing there.
fn start() -> (Model, Stepped<IpvsProxier>) {
    let model = Model::default();
    let node = node(&model);
    (model, node)
}

fn selector(ip: [u8; 4], port: u16) -> Selector {
    Selector::Address { protocol: 6, ip: ip.into(), port }
}

/// A Service with a TCP port 80 and endpoints of these last numbers.
fn with_endpoints(name: &str, ip: &str, endpoints: &[u8]) -> [Event; 2] {
    let service = service(name, ip).port("http", "TCP", 80);
    [service.apply(), endpoints_of(name, endpoints, &[])]
}

fn endpoints_of(name: &str, endpoints: &[u8], annotations: &[(&str, &str)]) -> Event {
    let mut slice = slice(name, "a").port("http", "TCP", 80);
    for last in endpoints {
        slice = slice.endpoint(endpoint(&format!("10.244.0.{last}"), NODE));
    }
    for (name, value) in annotations {
        slice = slice.annotation(name, *value);
    }
    slice.apply()
}

/// The weights of a virtual server, by the last numbers of the addresses of real servers; 0 for
/// those that drain.
fn weights(model: &Model, ip: [u8; 4], port: u16) -> Vec<(u8, u32)> {
    let held = model.lock();
    let (_, reals) = held.server(ip, port).expect("a virtual server");
    let last = |ip: IpAddr| ip.to_string().rsplit('.').next().unwrap().parse().unwrap();
    reals.iter().map(|(address, weight)| (last(address.ip()), *weight)).collect()
}

fn scheduler(model: &Model, ip: [u8; 4]) -> String {
    model.lock().server(ip, 80).expect("a virtual server").0.scheduler.clone()
}
