//! Services as they are asked for, and what becomes of them here: node ports that nothing serves, a
//! connection that fails, and rules that do otherwise.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpStream},
    time::Duration,
};

use switchyard_core::{
    explain::KnownService,
    model::{Code, IpFamily, Protocol},
    objects::{Event, Kind},
    proxier::Mode,
    state::FrontendAddress,
    track::Tracker,
};
use switchyard_kernel::route;

use super::{
    Known, Seen,
    cluster::{self, Unanswered},
    report::{Finding, Level, NotMade, Outcome},
    unanswered,
};
use crate::{config::settings::SourceSettings, explain::client, tracked, verify};

/// The longest wait for a connection.
const PATIENCE: Duration = Duration::from_secs(3);
/// The Services of which one is connected to: each cluster has one of them, and they bear it.
const PROBED: [(&str, &str); 2] = [("default", "kubernetes"), ("kube-system", "kube-dns")];
/// The times for which tables are read and evaluated, in an attempt.
const COMPARE_FOR: Duration = Duration::from_secs(5);
/// The most Services that a finding names.
const MOST_NAMES: usize = 3;

/// Returns the Services that the running proxy knows, or else those that the configuration leads
/// to.
///
/// # Errors
/// If there are none.
pub(super) fn see(known: &Known) -> Result<Seen, NotMade> {
    let unanswered = match client::services(&known.socket) {
        Ok(running) => return Ok(Seen { picture: running.picture, is_cut: false }),
        Err(error) => unanswered(&error),
    };
    let settings = known.loaded.with_mode(known.likely_mode())?;
    let profile = switchyard_nft::PROFILE;
    let mut is_cut = false;
    let tracker = match &settings.source {
        SourceSettings::Manifests(directory) => {
            tracked::tracked(&settings, directory, &profile, &mut io::sink())?
        }
        _ => {
            let cluster = known.cluster().as_ref();
            let reason = |error: &Unanswered| format!("{unanswered}; {}", error.reason());
            let cluster = cluster.map_err(|error| NotMade(reason(error)))?;
            is_cut = cluster.is_cut;
            if let Some(kind) = cluster.too_large {
                let (kind, most) = (kind.as_str(), cluster::LARGEST >> 20);
                let reason = format!("the API server's list of {kind}s has more than {most} MiB");
                return Err(NotMade(reason));
            }
            let mut tracker = Tracker::new(settings.node.clone());
            tracker.set_capabilities(profile.capabilities, profile.mode);
            let listed = Kind::ALL.map(Event::Listed);
            cluster.objects.iter().cloned().chain(listed).for_each(|event| {
                tracker.apply(event);
            });
            tracker
        }
    };
    Ok(Seen { picture: tracked::picture(tracker)?, is_cut })
}

/// The frontends of a Service in a family, with their ports and protocol.
pub(super) fn frontends(
    service: &KnownService,
) -> impl Iterator<Item = (IpFamily, Protocol, FrontendAddress, u16)> + '_ {
    let resolved = service.ports.iter().filter_map(|port| port.resolved.as_ref());
    resolved.flat_map(|port| {
        let (family, protocol) = (port.id.family, port.id.name.protocol);
        port.frontends.iter().map(move |front| (family, protocol, front.at, front.port))
    })
}

/// Finds node ports that no address of the node serves.
pub(super) fn node_ports(known: &Known) -> Outcome {
    let Seen { picture, is_cut } = known.seen()?;
    let addresses = route::interface_addresses()?;
    let finding = |family: IpFamily| {
        let asks = |service: &&KnownService| {
            let is_one = |(of, _, at, _)| of == family && at == FrontendAddress::NodePort;
            frontends(service).any(is_one)
        };
        let asking: Vec<String> =
            picture.services.iter().filter(asks).map(|one| one.name.to_string()).collect();
        let is_reachable = |ip: &&IpAddr| match ip {
            IpAddr::V4(ip) => !ip.is_loopback(),
            IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
        };
        let own: Vec<&IpAddr> =
            addresses.iter().filter(|ip| IpFamily::of(ip) == family).filter(is_reachable).collect();
        let served = picture.node.settings.node_ports.get(family);
        let is_served = own.iter().any(|ip| served.contains(**ip));
        (!asking.is_empty() && !own.is_empty() && !is_served).then(|| Finding {
            code: Code::new("SWY0409"),
            level: Level::Warning,
            finding: format!(
                "No address of this node serves {family} node ports, for which {} ask",
                named(&asking)
            ),
            because: format!(
                "nodePortAddresses leaves out all that the interfaces have: {}",
                own.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            ),
            remedy: "have nodePortAddresses name primary, or a network of these addresses"
                .to_owned(),
        })
    };
    let found: Vec<Finding> = IpFamily::ALL.into_iter().filter_map(finding).collect();
    match found.is_empty() && *is_cut {
        true => Err(NotMade(format!("nothing is wrong with those of {}", first_services()))),
        false => Ok(found),
    }
}

/// The Services that are read of an API server with more.
fn first_services() -> String {
    format!("the first {} Services, and the API server has more", cluster::MOST_SERVICES)
}

/// The first names, and the number of others.
fn named(all: &[String]) -> String {
    let (first, others) = all.split_at(all.len().min(MOST_NAMES));
    match others.len() {
        0 => first.join(", "),
        more => format!("{} and {more} other Services", first.join(", ")),
    }
}

/// Finds a Service of every cluster that this node cannot connect to.
pub(super) fn probe(known: &Known) -> Outcome {
    if !known.proxies.serves() {
        return Err(NotMade("no proxy serves this node".to_owned()));
    }
    let Seen { picture, is_cut } = known.seen()?;
    let address = |(namespace, name): (&str, &str)| {
        let is_meant = |one: &&KnownService| one.name.parts() == (namespace, name);
        let service = picture.services.iter().find(is_meant)?;
        frontends(service).find_map(|(_, protocol, at, port)| match at {
            FrontendAddress::ClusterIp(ip) if protocol == Protocol::Tcp => {
                Some((&service.name, SocketAddr::new(ip, port)))
            }
            _ => None,
        })
    };
    let Some((name, address)) = PROBED.into_iter().find_map(address) else {
        let [one, other] = PROBED.map(|(namespace, name)| format!("{namespace}/{name}"));
        let among = if *is_cut { format!(" among {}", first_services()) } else { String::new() };
        return Err(NotMade(format!("neither {one} nor {other} has a port of TCP{among}")));
    };
    match TcpStream::connect_timeout(&address, PATIENCE) {
        Ok(_) => Ok(Vec::new()),
        // Without privileges, it serves at other addresses.
        Err(_) if known.likely_mode() == Mode::USERSPACE => {
            Err(NotMade("in userspace mode, cluster IPs may not lead to the proxy".to_owned()))
        }
        Err(error) => Ok(vec![Finding {
            code: Code::new("SWY0408"),
            level: Level::Error,
            finding: format!("This node cannot connect to {name} at {address}"),
            because: match error.kind() {
                io::ErrorKind::TimedOut => format!("nothing answered for {} s", PATIENCE.as_secs()),
                _ => format!("the connection failed: {error}"),
            },
            remedy: format!(
                "switchyard explain {name} has the endpoints and what is wrong with them"
            ),
        }]),
    }
}

/// Finds rules that do otherwise than the running proxy means.
pub(super) fn as_meant(known: &Known) -> Outcome {
    known.privileged()?;
    let limits = (COMPARE_FOR, COMPARE_FOR);
    let compared = verify::compare_running(&known.socket, &known.loaded.settings, limits);
    let report = compared.map_err(|error| NotMade(unanswered(error.as_ref())))?;
    if report.is_equal() {
        return Ok(Vec::new());
    }
    if report.is_unsettled {
        return Err(NotMade("the running proxy has changes to sync".to_owned()));
    }
    let Some(example) = report.unmeant().find(|one| one.understood) else {
        let (seconds, count) = (COMPARE_FOR.as_secs(), report.different);
        return Err(NotMade(format!(
            "rules for {count} kinds of packets are not understood, or not within {seconds} s"
        )));
    };
    Ok(vec![Finding {
        code: Code::new("SWY0305"),
        level: Level::Error,
        finding: "The kernel's rules do otherwise than the proxy means".to_owned(),
        because: format!("{} kinds of packets differ: {example}", report.different),
        remedy: "switchyard verify shows all; the proxy's log, who made them".to_owned(),
    }])
}
