//! The device with the addresses of Services, and the addresses of all other devices.

use std::{collections::BTreeSet, net::IpAddr};

use packet_rig::NetNs;
use switchyard_core::model::IpFamily;

use super::super::Result;

pub const DEVICE: &str = "kube-ipvs0";

/// Makes the device if it does not exist.
pub fn ensure(node: &NetNs) -> Result<()> {
    let exists = node.output("ip", &["link", "show", "dev", DEVICE], "").is_ok();
    if !exists && node.ip(&format!("link add {DEVICE} type dummy\n")).is_err() {
        node.ip(&format!("link add {DEVICE} type bridge\n"))?;
    }
    Ok(())
}

/// Adds addresses that the device does not have.
pub fn bind(node: &NetNs, family: IpFamily, wanted: &BTreeSet<IpAddr>) -> Result<()> {
    let held = bound(node, family)?;
    // A preferred address of IPv6 may become the source of masqueraded packets, in place of the
    // node's own, which the probes expect.
    let host = if family == IpFamily::V4 { "32" } else { "128 nodad preferred_lft 0" };
    let add = |ip: &IpAddr| format!("address add {ip}/{host} dev {DEVICE}\n");
    Ok(node.ip(&wanted.difference(&held).map(add).collect::<String>())?)
}

/// Removes the addresses that are not wanted.
pub fn unbind_others(node: &NetNs, family: IpFamily, wanted: &BTreeSet<IpAddr>) -> Result<()> {
    let held = bound(node, family)?;
    let host = if family == IpFamily::V4 { "32" } else { "128" };
    let delete = |ip: &IpAddr| format!("address del {ip}/{host} dev {DEVICE}\n");
    Ok(node.ip(&held.difference(wanted).map(delete).collect::<String>())?)
}

/// The addresses on the device.
pub fn bound(node: &NetNs, family: IpFamily) -> Result<BTreeSet<IpAddr>> {
    all(node, family, |device| device == DEVICE)
}

/// The addresses of the node, at which node ports are served.
pub fn node_addresses(node: &NetNs, family: IpFamily) -> Result<BTreeSet<IpAddr>> {
    all(node, family, |device| device != DEVICE && device != "lo")
}

fn all(node: &NetNs, family: IpFamily, of: impl Fn(&str) -> bool) -> Result<BTreeSet<IpAddr>> {
    let option = if family == IpFamily::V4 { "-4" } else { "-6" };
    let text = node.output("ip", &[option, "-oneline", "address"], "")?;
    let address = |line: &str| {
        // `2: eth0    inet 192.168.10.1/24 ...`
        let mut words = line.split_whitespace().skip(1);
        let device = words.next()?;
        let ip: IpAddr = words.nth(1)?.split('/').next()?.parse().ok()?;
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        (of(device) && !is_link_local).then_some(ip)
    };
    Ok(text.lines().filter_map(address).collect())
}
