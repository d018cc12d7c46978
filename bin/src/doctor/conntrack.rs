//! Connection tracking: a table that is nearly full, packets that it loses, and its settings.

use std::{fs, thread, time::Duration};

use switchyard::conntrack::{Usage, UsageReader};
use switchyard_core::{error::ErrorChain, model::Code};

use super::{
    Known, Seen,
    report::{Finding, Level, NotMade, Outcome},
};
use crate::observability::conntrack::{Destinations, NEARLY_FULL, Shares, count};

/// The share of the limit, in percent, at which the table is as good as full.
const FULL: u64 = 95;
/// The time in which losses are counted.
const WHILE: Duration = Duration::from_secs(1);

fn read() -> Result<Usage, switchyard_kernel::netlink::Error> {
    UsageReader::open()?.read()
}

/// Finds a table that is nearly full, and names what fills it.
pub(super) fn full(known: &Known) -> Outcome {
    known.privileged()?;
    let usage = read()?;
    let Some((percent, limit)) = usage.percent().zip(usage.limit) else { return Ok(Vec::new()) };
    let level = match percent {
        ..NEARLY_FULL => return Ok(Vec::new()),
        NEARLY_FULL..FULL => Level::Warning,
        _ => Level::Error,
    };
    let who = match shares(known) {
        Ok(shares) => fillers(&shares, usage.entries),
        Err(error) => format!("who fills it is not known: {}", ErrorChain(&error)),
    };
    Ok(vec![Finding {
        code: Code::new("SWY0201"),
        level,
        finding: format!("Connection tracking is {percent} % full, and drops new connections when it is full"),
        because: format!("it has {} of {limit} entries; {who}", usage.entries),
        remedy: "raise conntrack.maxPerCore (nf_conntrack_max), or shorten its timeouts (conntrack.udpTimeout)"
            .to_owned(),
    }])
}

/// Names what has most of the entries.
fn fillers(shares: &Shares<String>, entries: u64) -> String {
    let percent = |count: u64| count.saturating_mul(100) / entries.max(1);
    let mut parts: Vec<String> = shares
        .largest
        .iter()
        .take(3)
        .map(|(what, count)| format!("{what} {} %", percent(*count)))
        .collect();
    parts.push(format!("others {} %", percent(shares.others + shares.elsewhere)));
    parts.join(", ")
}

/// Finds losses while the table is watched.
pub(super) fn losses(known: &Known) -> Outcome {
    known.privileged()?;
    let before = read()?;
    thread::sleep(WHILE);
    Ok(Vec::from_iter(lost(before, read()?)))
}

fn lost(before: Usage, after: Usage) -> Option<Finding> {
    let dropped = after.dropped.saturating_sub(before.dropped);
    let failures = after.insert_failures.saturating_sub(before.insert_failures);
    let seconds = WHILE.as_secs();
    let (level, finding, remedy) = match (dropped, failures) {
        (0, 0) => return None,
        (0, _) => (
            Level::Warning,
            "Connection tracking loses packets of connections that begin at the same time",
            "find the clients that send several packets from one new UDP socket at once, as resolvers do",
        ),
        _ => (
            Level::Error,
            "Connection tracking drops new connections",
            "raise nf_conntrack_max and the number of buckets; see whether the node lacks memory",
        ),
    };
    Some(Finding {
        code: Code::new("SWY0202"),
        level,
        finding: finding.to_owned(),
        because: format!(
            "within {seconds} s, {dropped} packets were dropped, and {failures} entries not inserted; since the \
             node began, {} and {}",
            after.dropped, after.insert_failures
        ),
        remedy: remedy.to_owned(),
    })
}

/// Finds settings of connection tracking that are not as the configuration asks.
pub(super) fn settings(known: &Known) -> Outcome {
    let Some(asked) = known.loaded.settings.conntrack.filter(|asked| asked.is_asked_for) else {
        return Ok(Vec::new());
    };
    const PATH: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";
    let setting = fs::read_to_string(PATH);
    let setting = setting.map_err(|error| NotMade(format!("{PATH}: {error}")))?;
    let found = (asked.tcp_be_liberal && setting.trim() == "0").then(|| Finding {
        code: Code::new("SWY0203"),
        level: Level::Warning,
        finding: "Connections with packets outside the window are not served as configured"
            .to_owned(),
        because:
            "conntrack.tcpBeLiberal is set, and net.netfilter.nf_conntrack_tcp_be_liberal is 0"
                .to_owned(),
        remedy: "run switchyard --init-only with privileges, or sysctl -w \
                     net.netfilter.nf_conntrack_tcp_be_liberal=1"
            .to_owned(),
    });
    Ok(Vec::from_iter(found))
}

/// Counts the entries by Service where the Services are known, else by address.
fn shares(known: &Known) -> Result<Shares<String>, switchyard_kernel::netlink::Error> {
    if let Ok(Seen { picture, is_cut: false }) = known.seen() {
        let ports = picture.services.iter().flat_map(|service| &service.ports);
        let ports = ports.filter_map(|port| port.resolved.as_deref());
        let Shares { largest, others, elsewhere, stuck } = Destinations::of(ports).count()?;
        let largest =
            largest.into_iter().map(|(service, count)| (service.to_string(), count)).collect();
        return Ok(Shares { largest, others, elsewhere, stuck });
    }
    count(|protocol, at| Some(format!("{at}/{}", protocol.as_lower())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_found_when_they_rise() {
        let usage = |dropped, failures| {
            let mut usage = Usage::default();
            (usage.dropped, usage.insert_failures) = (dropped, failures);
            usage
        };
        let level = |before, after| lost(before, after).map(|finding| finding.level);
        assert_eq!(level(usage(5, 7), usage(5, 7)), None, "what was lost before");
        assert_eq!(level(usage(5, 7), usage(5, 8)), Some(Level::Warning));
        let found = lost(usage(5, 7), usage(8, 8)).unwrap();
        assert_eq!(found.level, Level::Error);
        assert!(found.because.starts_with("within 1 s, 3 packets were dropped, and 1 entries"));
    }
}
