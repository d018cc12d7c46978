//! Detours: where clients on this node are led elsewhere.
//!
//! A map leads from the frontend to a chain, which draws one of so many slots. Another map has the target
//! in each slot.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use switchyard_core::model::{IpFamily, Protocol};
use switchyard_nft_ruleset::{
    ChainName, Element, Field, Key, Rule, Selector, SetDef, SetName, SlotChoice, Statement, Value,
    Verdict,
};

use super::layout;
use crate::{filter::RuleInputs, layout::exceptions::Detour};

/// The map from frontends to chains.
const DETOURS: &str = "detours";
/// The beginning of the names of the chains.
const DRAW: &str = "draw-";
/// The most slots of a frontend. Weights that add up to more are rounded.
const MOST_SLOTS: u64 = 1024;

/// The detours of a family, as elements of maps.
#[derive(Clone, Debug, Default)]
pub(super) struct Detours {
    pub(super) elements: BTreeMap<(SetName, Key), Element>,
    pub(super) chains: BTreeSet<DrawChain>,
}

/// A chain that draws a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DrawChain {
    protocol: Protocol,
    slots: u32,
}

impl DrawChain {
    pub(super) fn name(self) -> ChainName {
        format!("{DRAW}{}-{}", self.protocol.as_lower(), self.slots).into()
    }

    pub(super) fn rules(self) -> Vec<Rule> {
        vec![Rule::new([Statement::DnatSlot {
            protocol: self.protocol,
            key: vec![Selector::DestinationAddress, Selector::DestinationPort],
            choice: SlotChoice::Random,
            slots: self.slots,
            map: targets(self.protocol).into(),
        }])]
    }
}

/// Whether a chain is or was one that draws a slot. Such chains stay when no detour needs them.
pub(super) fn is_draw_chain(name: &ChainName) -> bool {
    name.as_str().starts_with(DRAW)
}

/// Returns the definitions of the maps.
pub(super) fn definitions(family: IpFamily) -> Vec<Arc<SetDef>> {
    use Field::{InetProto, InetService, Port, Slot};
    let ip = layout::address_field(family);
    let targets = Protocol::ALL.map(|protocol| {
        let port = Port(protocol);
        Arc::new(SetDef::map(targets(protocol), [ip, port, Slot], [ip, port]))
    });
    let detours = SetDef::verdict_map(DETOURS, [ip, InetProto, InetService]);
    [Arc::new(detours)].into_iter().chain(targets).collect()
}

/// Returns the statement that takes the detour of a packet, if there is one.
pub(super) fn lookup() -> Statement {
    let key = vec![Selector::DestinationAddress, Selector::Protocol, Selector::DestinationPort];
    Statement::VerdictMap { key, map: DETOURS.into() }
}

fn targets(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "detour-targets-tcp",
        Protocol::Udp => "detour-targets-udp",
        Protocol::Sctp => "detour-targets-sctp",
    }
}

impl Detours {
    pub(super) fn new(inputs: &RuleInputs<'_>) -> Self {
        let mut detours = Self::default();
        let mut taken = BTreeSet::new();
        for detour in &inputs.exceptions.detours {
            let ips: Vec<IpAddr> = match detour.ip {
                Some(ip) => vec![ip],
                None => inputs.node_addresses().collect(),
            };
            for ip in ips {
                // The first one counts: an address of the node comes before the node ports there.
                if taken.insert((ip, detour.name.protocol, detour.port)) {
                    detours.add(detour, ip);
                }
            }
        }
        detours
    }

    fn add(&mut self, detour: &Detour, ip: IpAddr) {
        let protocol = detour.name.protocol;
        let weights: Vec<u32> = detour.targets.iter().map(|(_, weight)| *weight).collect();
        let mut slots = 0;
        for ((target, _), count) in detour.targets.iter().zip(counts(&weights)) {
            let value = Value::new().address(target.ip()).port(target.port());
            for slot in slots..slots + count {
                let key = Key::new().address(ip).port(detour.port).slot(slot);
                self.insert(targets(protocol), Element::value(key, value));
            }
            slots += count;
        }
        if slots == 0 {
            return;
        }
        let chain = DrawChain { protocol, slots };
        let key = Key::new().address(ip).protocol(protocol).port(detour.port);
        let element = Element::verdict(key, Verdict::Goto(chain.name()));
        self.insert(DETOURS, element.with_comment(detour.name.to_string()));
        self.chains.insert(chain);
    }

    fn insert(&mut self, map: &str, element: Element) {
        self.elements.insert((map.into(), element.key), element);
    }
}

/// Returns the number of slots of each target, in proportion to the weights.
fn counts(weights: &[u32]) -> Vec<u32> {
    let divisor = weights.iter().fold(0, |divisor, weight| gcd(divisor, *weight)).max(1);
    let total: u64 = weights.iter().map(|weight| u64::from(weight / divisor)).sum();
    let share = |weight: &u32| {
        let count = u64::from(weight / divisor);
        let rounded = match total > MOST_SLOTS && count > 0 {
            true => (count * MOST_SLOTS / total).max(1),
            false => count,
        };
        u32::try_from(rounded).unwrap_or(u32::MAX)
    };
    weights.iter().map(share).collect()
}

fn gcd(a: u32, b: u32) -> u32 {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_in_proportion_to_weights() {
        assert_eq!(counts(&[1]), [1]);
        assert_eq!(counts(&[100, 100, 50]), [2, 2, 1]);
        assert_eq!(counts(&[0, 7]), [0, 1]);
        assert_eq!(counts(&[0, 0]), [0, 0]);
        assert_eq!(counts(&[u32::MAX, 1]), [1023, 1]);
        assert!(counts(&[1; 3000]).iter().all(|count| *count == 1));
    }
}
