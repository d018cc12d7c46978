//! Parsers of the fields of a KubeProxyConfiguration that hold addresses. Errors are in
//! kube-proxy's words.

use std::net::SocketAddr;

use ipnet::IpNet;
use switchyard_core::model::{IpFamily, parse_cidr, parse_ip};

/// The error of a text that is not a CIDR block.
pub(crate) const NOT_A_CIDR: &str =
    "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";

/// Parses `IP:port`, with IPv6 in brackets, and a port from 1 to 65535.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, &'static str> {
    let (host, port) = text.rsplit_once(':').ok_or("must be IP:port")?;
    let host = match host.strip_prefix('[') {
        Some(inside) => inside.strip_suffix(']').ok_or("must be IP:port")?,
        None if host.contains(':') => return Err("must be IP:port"),
        None => host,
    };
    let ip = parse_ip(host).map_err(|_| "must be a valid IP")?;
    match port.parse() {
        Ok(port) if port != 0 => Ok(SocketAddr::new(ip, port)),
        _ => Err("must be a valid port"),
    }
}

/// Parses `clusterCIDR`: empty, one network, or one network of each family. An error has the text
/// that was rejected.
pub(crate) fn cluster_cidrs(text: &str) -> Result<Vec<IpNet>, (String, &'static str)> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut nets: Vec<IpNet> = Vec::new();
    for part in text.split(',') {
        nets.push(parse_cidr(part).map_err(|_| (part.to_owned(), NOT_A_CIDR))?);
    }
    match &nets[..] {
        [_] => Ok(nets),
        [a, b] if IpFamily::of_net(a) != IpFamily::of_net(b) => Ok(nets),
        [_, _] => Err((text.to_owned(), "must be a valid DualStack CIDR pair")),
        _ => Err((text.to_owned(), "only one CIDR allowed or a valid DualStack CIDR pair")),
    }
}
