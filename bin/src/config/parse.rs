//! Parsers of the fields of a KubeProxyConfiguration that hold addresses. Errors are in
//! kube-proxy's words.

use std::net::SocketAddr;

use ipnet::IpNet;
use switchyard_core::model::{IpFamily, parse_cidr, parse_ip};

/// The error of a text that is not a CIDR block.
const NOT_A_CIDR: &str = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";

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

/// The error of networks that are not one, or one of each family.
const NO_PAIR: &str = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. \
                       [10.100.0.0/16, fde4:8dba:82e1::/48]";

/// Parses `clusterCIDR`: empty, one network, or one network of each family. An error has the index
/// of the rejected network, or `None` if all of them are.
pub(crate) fn cluster_cidrs(text: &str) -> Result<Vec<IpNet>, (Option<usize>, &'static str)> {
    let parts = text.split(',').filter(|_| !text.is_empty()).enumerate();
    if parts.clone().count() > 2 {
        return Err((None, NO_PAIR));
    }
    let nets = parts.map(|(i, part)| parse_cidr(part).map_err(|_| (Some(i), NOT_A_CIDR)));
    let nets = nets.collect::<Result<Vec<_>, _>>()?;
    match &nets[..] {
        [] | [_] => Ok(nets),
        [a, b] if IpFamily::of_net(a) != IpFamily::of_net(b) => Ok(nets),
        _ => Err((None, NO_PAIR)),
    }
}
