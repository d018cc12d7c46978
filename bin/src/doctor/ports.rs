//! The ports of the proxy's servers.

use std::net::SocketAddr;

use switchyard_core::model::Code;

use super::{
    Known, ask,
    report::{Finding, Level, Outcome},
};

/// Finds other programs at the addresses of the proxy's servers.
pub(super) fn held(known: &Known) -> Outcome {
    let servers = &known.loaded.settings.servers;
    let healthz = servers.healthz.map(|address| (address, "healthz", "/healthz"));
    let metrics = (servers.metrics, "metrics", "/proxyMode");
    let found = healthz.into_iter().chain([metrics]).filter_map(|(address, what, path)| {
        match ask::get(address, path) {
            Ok(Some(answer)) if is_a_proxys(what, &answer) => None,
            Ok(Some(_)) => Some(finding(address, what, "answers otherwise than a proxy")),
            Ok(None) => Some(finding(address, what, "does not answer")),
            // Nothing listens, or no connection can be made, as to an address that is not here.
            Err(_) => None,
        }
    });
    Ok(found.collect())
}

/// Whether a proxy's server answers like this: kube-proxy's, or that of this program.
fn is_a_proxys(what: &str, answer: &str) -> bool {
    match what {
        "healthz" => ask::body(answer).contains("lastUpdated"),
        _ => {
            let modes = ["iptables", "ipvs", "nftables", "userspace", "kernelspace"];
            modes.contains(&ask::body(answer).trim())
        }
    }
}

fn finding(address: SocketAddr, what: &str, how: &str) -> Finding {
    Finding {
        code: Code::new("SWY0406"),
        level: Level::Error,
        finding: format!("Another program has the address of the proxy's {what}, {address}"),
        because: format!("what listens there {how}"),
        remedy: format!(
            "find it by ss -ltnp 'sport = :{}' and end it, or set {what}BindAddress",
            address.port()
        ),
    }
}
