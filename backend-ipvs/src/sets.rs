//! The ipsets of ipvs mode, under kube-proxy's names.

use std::{
    thread,
    time::{Duration, Instant},
};

use switchyard_ipset::{DestroyError, IpSets, LONGEST_NAME};
use switchyard_netlink::Error;

/// The names of the IPv4 sets.
const NAMES: [&str; 17] = [
    "KUBE-LOOP-BACK",
    "KUBE-CLUSTER-IP",
    "KUBE-EXTERNAL-IP",
    "KUBE-EXTERNAL-IP-LOCAL",
    "KUBE-LOAD-BALANCER",
    "KUBE-LOAD-BALANCER-LOCAL",
    "KUBE-LOAD-BALANCER-FW",
    "KUBE-LOAD-BALANCER-SOURCE-IP",
    "KUBE-LOAD-BALANCER-SOURCE-CIDR",
    "KUBE-NODE-PORT-TCP",
    "KUBE-NODE-PORT-LOCAL-TCP",
    "KUBE-NODE-PORT-UDP",
    "KUBE-NODE-PORT-LOCAL-UDP",
    "KUBE-NODE-PORT-SCTP-HASH",
    "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
    "KUBE-HEALTH-CHECK-NODE-PORT",
    "KUBE-IPVS-IPS",
];

/// How long rules that were deleted may take to let go of their sets.
const PATIENCE: Duration = Duration::from_secs(3);

/// How often a set that is in use is tried again.
const INTERVAL: Duration = Duration::from_millis(10);

/// Returns the names of the sets of both families.
fn names() -> impl Iterator<Item = String> {
    NAMES.into_iter().flat_map(|name| [name.to_owned(), ipv6_name(name)])
}

/// Returns the name of the IPv6 set, cut to the length that the kernel allows.
fn ipv6_name(ipv4: &str) -> String {
    let mut name = ipv4.replacen("KUBE-", "KUBE-6-", 1);
    name.truncate(LONGEST_NAME);
    name
}

/// The sets of ipvs mode that exist.
pub(crate) struct ExistingSets {
    connection: IpSets,
    names: Vec<String>,
}

impl ExistingSets {
    /// Lists the sets. kube-router's, which are called `KUBE-` as well, are not among them.
    pub(crate) fn find() -> Result<Self, Error> {
        let mut connection = IpSets::open()?;
        let existing = connection.names()?;
        let names = names().filter(|name| existing.contains(name)).collect();
        Ok(Self { connection, names })
    }

    /// Whether none exists.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Destroys the sets, and returns their number. Waits for those that are in use.
    ///
    /// # Errors
    /// The first set that could not be destroyed, after all others were.
    pub(crate) fn destroy(mut self) -> Result<usize, (String, DestroyError)> {
        let deadline = Instant::now() + PATIENCE;
        let mut count = 0;
        let mut result = Ok(());
        for name in self.names {
            match destroy(&mut self.connection, &name, deadline) {
                Ok(existed) => count += usize::from(existed),
                Err(error) => result = result.and(Err((name, error))),
            }
        }
        result.map(|()| count)
    }
}

fn destroy(sets: &mut IpSets, name: &str, deadline: Instant) -> Result<bool, DestroyError> {
    loop {
        match sets.destroy(name) {
            Err(DestroyError::InUse) if Instant::now() < deadline => thread::sleep(INTERVAL),
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_names_are_cut() {
        assert_eq!(ipv6_name("KUBE-IPVS-IPS"), "KUBE-6-IPVS-IPS");
        assert_eq!(ipv6_name("KUBE-LOAD-BALANCER-SOURCE-CIDR"), "KUBE-6-LOAD-BALANCER-SOURCE-CID");
        assert_eq!(ipv6_name("KUBE-NODE-PORT-LOCAL-SCTP-HASH"), "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS");
        let mut all: Vec<String> = names().collect();
        assert!(all.iter().all(|name| name.len() <= LONGEST_NAME));
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 2 * NAMES.len());
    }
}
