//! The stories of the kit about what the kernel refuses, or other programs change, with the rules
//! of either backend: each of these has stories of its own. Needs root, and the programs `ip`,
//! `nft` and those of iptables.
//!
//! Each open backend has sockets of its own, at ports that no other has, so that a successor beside
//! a predecessor changes all rules: the stories of take-overs cannot hold.

#![cfg(target_os = "linux")]

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use switchyard_core::{
    model::PerFamily,
    proxier::Proxier,
    testing::conformance::{Damage, Refusals, RefusedPart, Subject},
};
use switchyard_iptables::{ChainNaming, Flavour, IptablesConfig, IptablesProxier};
use switchyard_kernel::nftables::{
    TransportError, TransportKind,
    testing::{InterceptingTransport, spoil},
};
use switchyard_nft::{NftConfig, NftProxier};
use test_netns::{iptables_lines, nft_lines, run};

use crate::{
    capture::redirect::Redirect,
    forwarder::{Forwarder, ForwarderConfig},
    proxier::UserspaceProxier,
};

mod nftables {
    use super::*;

    switchyard_core::conformance!(@stories Redirected::new(Rules::Nft);
        a_refused_port_costs_nothing_else
        a_refused_family_costs_the_other_nothing
        a_sync_that_is_refused_halfway_is_made_good
        a_change_on_top_of_damage_is_made_good
        a_clean_up_is_total_and_repeatable
    );
}

mod iptables {
    use super::*;

    switchyard_core::conformance!(@stories Redirected::new(Rules::Iptables);
        a_change_on_top_of_damage_is_made_good
        a_clean_up_is_total_and_repeatable
    );
}

/// The backend whose rules redirect traffic.
#[derive(Clone, Copy)]
enum Rules {
    Nft,
    Iptables,
}

struct Redirected {
    rules: Rules,
    /// With nftables.
    refusals: Refusals,
    refused: Arc<Mutex<Option<RefusedPart>>>,
}

impl Redirected {
    fn new(rules: Rules) -> Self {
        Self { rules, refusals: Refusals::default(), refused: Arc::default() }
    }

    fn beneath(&self) -> Box<dyn Proxier> {
        match self.rules {
            Rules::Nft => {
                let (refusals, refused) = (self.refusals.clone(), self.refused.clone());
                let transport = TransportKind::Netlink.open().unwrap();
                let transport = InterceptingTransport::altering(transport, move |transaction| {
                    if let Some(part) = &*refused.lock().unwrap() {
                        let (family, comment) = part.names();
                        spoil(transaction, family, comment.as_deref());
                    }
                    match refusals.is_next_refused() {
                        true => Err(TransportError::Malformed("refused by a test".to_owned())),
                        false => Ok(()),
                    }
                });
                let mut config = NftConfig::default();
                config.table = "switchyard-userspace".into();
                Box::new(NftProxier::new(config, Box::new(transport)))
            }
            Rules::Iptables => {
                let mut config = IptablesConfig::default();
                config.chains = ChainNaming::Switchyard;
                config.flavour = Some(Flavour::Nft);
                Box::new(IptablesProxier::new(config).unwrap())
            }
        }
    }
}

/// Takes the ports of the proxy's sockets from a line, and the names of chains that depend on them.
fn without_ports(line: &str) -> String {
    let mut line = line.to_owned();
    for beginning in ["192.0.0.83 . ", "192.0.0.83:", "fd73:7769:7463::1 . ", "fd73:7769:7463::1]:"]
    {
        let parts: Vec<&str> = line.split(beginning).collect();
        let digits = |part: &str| part.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
        let rest: Vec<String> = parts[1..].iter().map(|part| digits(part)).collect();
        line = [&[parts[0].to_owned()], &rest[..]].concat().join(beginning);
    }
    let parts: Vec<&str> = line.split("-SEP-").collect();
    let rest: Vec<&str> = parts[1..].iter().map(|part| part.get(16..).unwrap_or(part)).collect();
    [&parts[..1], &rest].concat().join("-SEP-")
}

impl Subject for Redirected {
    type Backend = UserspaceProxier;

    fn in_namespace<T: Send + Default>(&self, work: impl FnOnce() -> T + Send) -> T {
        test_netns::in_namespace(|| {
            run("ip link set lo up");
            work()
        })
    }

    fn open(&self) -> UserspaceProxier {
        let config = ForwarderConfig { threads: Some(1), ..ForwarderConfig::default() };
        let both = PerFamily { v4: true, v6: true };
        let capture = Redirect::open(self.beneath(), both, 0x1800).unwrap();
        UserspaceProxier::new(Forwarder::start(config).unwrap(), Box::new(capture))
    }

    fn dump(&self) -> String {
        let mut lines = match self.rules {
            Rules::Nft => nft_lines(),
            Rules::Iptables => iptables_lines(),
        };
        let addresses = run("ip -brief address");
        lines.extend(addresses.lines().map(|line| line.replace("UNKNOWN", "").replace(' ', "")));
        lines.sort_unstable();
        lines.iter().map(|line| without_ports(line) + "\n").collect()
    }

    /// Chains that several Services need, and those that wait for their deletion.
    fn may_remain(&self, line: &str) -> bool {
        line.contains(" chain ") && (line.contains("lb/") || !line.contains(": "))
    }

    fn listing(&self) -> String {
        self.dump()
    }

    fn add_others(&self) {
        match self.rules {
            Rules::Nft => drop(run("nft add table ip theirs")),
            Rules::Iptables => drop(run("iptables-nft -w -t nat -N THEIRS")),
        }
    }

    /// For the stories of monitors, which are those of the backend beneath.
    fn change_others(&self) {}

    fn damages(&self) -> Vec<Damage> {
        let command = |line: &'static str| Damage::new(line, "", move || drop(run(line)));
        let rules = match self.rules {
            Rules::Nft => "nft delete table ip switchyard-userspace",
            Rules::Iptables => "iptables-nft -w -t nat -F",
        };
        vec![command(rules), command("ip link del switchyard0")]
    }

    fn refuse(&self, transactions: Range<usize>) {
        self.refusals.set(transactions);
    }

    fn refused(&self) -> usize {
        self.refusals.count()
    }

    fn refuse_part(&self, part: Option<&RefusedPart>) {
        *self.refused.lock().unwrap() = part.cloned();
    }
}
