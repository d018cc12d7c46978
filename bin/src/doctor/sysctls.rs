//! Settings of the kernel that traffic of Services depends on.

use std::{collections::BTreeSet, fs, io};

use switchyard_core::{
    model::{Code, IpFamily},
    proxier::Mode,
};
use switchyard_kernel::{route::interface_addresses, sysctl::routes_localnet};

use super::{
    Known, Seen,
    report::{Finding, Level, NotMade, Outcome},
    services::frontends,
};

/// The ports of node ports, unless the API server is configured otherwise
/// (`--service-node-port-range`).
const NODE_PORTS: (u16, u16) = (30_000, 32_767);

fn read(name: &str) -> io::Result<String> {
    Ok(fs::read_to_string(format!("/proc/sys/net/{name}"))?.trim().to_owned())
}

/// Returns the reason why `what` cannot be read.
fn not_read(what: &str) -> impl Fn(io::Error) -> NotMade {
    move |error| NotMade(format!("{what}: {error}"))
}

/// Finds a node that does not forward packets, where endpoints are other hosts.
pub(super) fn forwarding(known: &Known) -> Outcome {
    if known.likely_mode() == Mode::USERSPACE {
        return Ok(Vec::new());
    }
    if read("ipv4/ip_forward").map_err(not_read("net.ipv4.ip_forward"))? != "0" {
        return Ok(Vec::new());
    }
    if !has_ipv4(known) {
        let reason = "net.ipv4.ip_forward is 0, and nothing of IPv4 is known";
        return Err(NotMade(reason.to_owned()));
    }
    Ok(vec![Finding {
        code: Code::new("SWY0402"),
        level: Level::Error,
        finding: "Neither pods nor other hosts reach endpoints through this node".to_owned(),
        because: "net.ipv4.ip_forward is 0, so the node forwards nothing".to_owned(),
        remedy: "sysctl -w net.ipv4.ip_forward=1".to_owned(),
    }])
}

/// Whether there are Service ports of IPv4, or while not all are known, the node has an address.
fn has_ipv4(known: &Known) -> bool {
    match known.seen() {
        Ok(Seen { picture, is_cut: false }) => {
            let mut all = picture.services.iter().flat_map(frontends);
            all.any(|(family, ..)| family == IpFamily::V4)
        }
        _ => interface_addresses()
            .is_ok_and(|all| all.iter().any(|ip| ip.is_ipv4() && !ip.is_loopback())),
    }
}

/// Finds interfaces that drop what would be answered by another one, on a node with several
/// networks.
pub(super) fn reverse_path(known: &Known) -> Outcome {
    if known.likely_mode() == Mode::USERSPACE {
        return Ok(Vec::new());
    }
    const ROUTES: &str = "/proc/self/net/route";
    let routes = fs::read_to_string(ROUTES).map_err(not_read(ROUTES))?;
    let uplinks = default_interfaces(&routes);
    if uplinks.len() < 2 {
        return Ok(Vec::new());
    }
    let setting = |interface: &str| -> u8 {
        let value = read(&format!("ipv4/conf/{interface}/rp_filter"));
        value.ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    let all = setting("all");
    // The higher value counts: 2 is the loose check.
    let is_strict = |interface: &&String| setting(interface).max(all) == 1;
    let strict: Vec<&str> = uplinks.iter().filter(is_strict).map(String::as_str).collect();
    let list = strict.join(", ");
    let found = (!strict.is_empty()).then(|| Finding {
            code: Code::new("SWY0403"),
            level: Level::Warning,
            finding: format!("Clients that reach this node by one network and are answered by another are dropped at {list}"),
            because: format!(
                "this node has default routes by {}, and net.ipv4.conf.*.rp_filter is 1 (strict) there",
                uplinks.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
            ),
            remedy: "sysctl -w net.ipv4.conf.all.rp_filter=2".to_owned(),
        });
    Ok(Vec::from_iter(found))
}

/// The interfaces of default routes, by the lines of `/proc/net/route`.
fn default_interfaces(routes: &str) -> BTreeSet<String> {
    let interface = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Destination, and mask.
        (fields.get(1) == Some(&"00000000") && fields.get(7) == Some(&"00000000"))
            .then(|| fields.first().map(|name| (*name).to_owned()))?
    };
    routes.lines().filter_map(interface).collect()
}

/// Finds node ports that localhost does not serve, though a proxy is to have them there.
pub(super) fn localhost(known: &Known) -> Outcome {
    let names_addresses = !known.loaded.config.node_port_addresses.is_empty();
    let mode = known.proxies.mode.filter(|mode| match *mode {
        Mode::IPTABLES => true,
        // Genuine kube-proxy needs a gate for it, and the default depends on the configuration.
        Mode::NFTABLES => known.proxies.is_ours && (known.is_configured || names_addresses),
        _ => false,
    });
    let Some(mode) = mode else { return Ok(Vec::new()) };
    let is_served = known.loaded.with_mode(mode)?.node.serves_localhost();
    let found = (is_served && !routes_localnet()).then(|| Finding {
        code: Code::new("SWY0404"),
        level: Level::Warning,
        finding: "Node ports do not answer on 127.0.0.1".to_owned(),
        because: "the proxy is to serve them there, and net.ipv4.conf.all.route_localnet is 0"
            .to_owned(),
        remedy:
            "sysctl -w net.ipv4.conf.all.route_localnet=1, or iptables.localhostNodePorts: false"
                .to_owned(),
    });
    Ok(Vec::from_iter(found))
}

/// Finds ports of outgoing connections that are node ports.
pub(super) fn local_ports(_: &Known) -> Outcome {
    let settings = read("ipv4/ip_local_port_range")
        .and_then(|range| Ok((range, read("ipv4/ip_local_reserved_ports")?)));
    let (range, reserved) = settings.map_err(not_read("net.ipv4.ip_local_port_range"))?;
    Ok(Vec::from_iter(overlap(&range, &reserved)))
}

fn overlap(range: &str, reserved: &str) -> Option<Finding> {
    let ports: Vec<u16> = range.split_whitespace().filter_map(|text| text.parse().ok()).collect();
    let [low, high] = ports[..] else { return None };
    let (first, last) = (low.max(NODE_PORTS.0), high.min(NODE_PORTS.1));
    let is_reserved = |port: u16| {
        reserved.split(',').any(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let bounds = from.trim().parse::<u16>().ok().zip(to.trim().parse::<u16>().ok());
            bounds.is_some_and(|(from, to)| (from..=to).contains(&port))
        })
    };
    let count = (first..=last).filter(|port| !is_reserved(*port)).count();
    (count > 0).then(|| Finding {
        code: Code::new("SWY0405"),
        level: Level::Warning,
        finding: format!(
            "{count} node ports may be taken by connections that programs of this node open"
        ),
        because: format!(
            "net.ipv4.ip_local_port_range is {low}-{high}, and node ports are {}-{}",
            NODE_PORTS.0, NODE_PORTS.1
        ),
        remedy: format!(
            "sysctl -w net.ipv4.ip_local_reserved_ports={}{}{}-{}",
            reserved.trim(),
            if reserved.trim().is_empty() { "" } else { "," },
            NODE_PORTS.0,
            NODE_PORTS.1
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ports_that_are_not_reserved_overlap() {
        let count = |range, reserved| {
            let found = overlap(range, reserved)?.finding;
            found.split(' ').next()?.parse::<usize>().ok()
        };
        assert_eq!(count("32768\t60999", ""), None);
        assert_eq!(count("1024\t60999", ""), Some(2768));
        assert_eq!(count("32000\t60999", ""), Some(768));
        assert_eq!(count("1024\t60999", "30000-32767"), None);
        assert_eq!(count("1024\t60999", "22,30000-32765,32767"), Some(1));
        assert_eq!(count("1024\t31000", "8080"), Some(1001));
        assert_eq!(count("", ""), None);
    }

    #[test]
    fn default_routes_are_found() {
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\n\
                      eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\n\
                      eth1\t00000000\t0100010A\t0003\t0\t0\t200\t00000000\t0\n\
                      eth1\t0000010A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n";
        assert_eq!(default_interfaces(routes), ["eth0", "eth1"].map(str::to_owned).into());
    }
}
