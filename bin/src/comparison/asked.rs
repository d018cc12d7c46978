//! The fate that objects ask for a class of packets, and whether a fate in the kernel is that one.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use switchyard_core::{
    maglev,
    model::{LbAlgorithm, ServicePortId},
    state::{Endpoint, Pool, PoolKind, ResolvedServicePort},
};
use switchyard_kernel::nftables::{
    Family,
    bytecode::{Choice, End, Fate, PacketField, Packets, Share, fingerprint},
};

/// The seed of hashes, and the sizes of tables by the most endpoints (docs/nftables.md).
const SEED: u32 = 0x5357_5944;
const TABLES: [(usize, u32); 3] = [(6, 1_021), (20, 4_093), (1_638, 16_381)];
/// The sum up to which weights are exact, and the same for each endpoint if that is more.
const EXACT: u64 = 1_024;
const EXACT_EACH: u64 = 10;

/// A class of packets, and their fate.
#[derive(Clone)]
pub struct Class<'a> {
    /// The Service port; `None` for what belongs to none.
    pub port: Option<&'a ResolvedServicePort>,
    /// The destination, and the source, in words.
    pub to: String,
    pub from: &'static str,
    pub packets: Packets,
    pub asked: Asked<'a>,
}

impl<'a> Class<'a> {
    /// The pool whose clients are remembered, and for how long; `None` without affinity.
    pub fn affinity(&self) -> Option<((&'a ServicePortId, PoolKind), Duration)> {
        match self.asked {
            Asked::Pool { kind, affinity, .. } => Some(((&self.port?.id, kind), affinity?)),
            Asked::End(_) => None,
        }
    }

    /// Passes on what is asked for clients that are remembered at an endpoint: that they go there,
    /// or nowhere if the pool has no such endpoint.
    pub fn with_client_of<T>(
        &self,
        endpoint: (u128, u16),
        packets: Packets,
        see: impl FnOnce(&Class<'_>) -> T,
    ) -> T {
        let mut narrow = Class { packets, ..self.clone() };
        let one: Pool;
        if let Asked::Pool { pool: all, ends: of_all, .. } = &self.asked
            && let Asked::Pool { pool, ends, .. } = &mut narrow.asked
        {
            let is_own =
                |one: &Endpoint| (number(one.address.ip()), one.address.port()) == endpoint;
            let own = all.iter().zip(of_all).filter(|(one, _)| is_own(one));
            let (kept, kept_ends): (Vec<_>, Vec<_>) =
                own.map(|(one, end)| (*one, end.clone())).unzip();
            one = kept.into();
            (*pool, *ends) = (&one, kept_ends);
        }
        see(&narrow)
    }
}

/// The fate that is asked for.
#[derive(Clone)]
pub enum Asked<'a> {
    End(End),
    /// An endpoint of a pool.
    Pool {
        kind: PoolKind,
        pool: &'a Pool,
        /// The time for which clients are remembered.
        affinity: Option<Duration>,
        algorithm: LbAlgorithm,
        ends: Vec<End>,
    },
}

impl Asked<'_> {
    /// Whether a fate is the one that is asked for.
    pub fn is(&self, fate: &Fate) -> bool {
        let (pool, algorithm, ends) = match self {
            Self::End(end) => return fate.ends.len() == 1 && fate.ends.contains_key(end),
            Self::Pool { pool, algorithm, ends, .. } => (pool, *algorithm, ends),
        };
        let of = match algorithm {
            LbAlgorithm::SourceHash => vec![PacketField::Source],
            LbAlgorithm::Maglev => vec![PacketField::Source, PacketField::SourcePort],
            _ => Vec::new(),
        };
        let slots = TABLES.iter().find(|(most, _)| pool.len() <= *most).map(|(_, slots)| *slots);
        let table = match slots.filter(|_| !of.is_empty()) {
            Some(slots) => maglev::table(pool, slots as usize),
            None => Box::default(),
        };
        // A table may have no slot for an endpoint of little weight.
        let is_served = |index: usize| of.is_empty() || table.contains(&(index as u32));
        let served = ends.iter().enumerate().filter(|(index, _)| is_served(*index));
        let served: Vec<&End> = served.map(|(_, end)| end).collect();
        if fate.ends.len() != served.len() || !served.iter().all(|end| fate.ends.contains_key(*end))
        {
            return false;
        }
        if served.len() == 1 {
            return true;
        }
        let Some(slots) = slots.filter(|_| !of.is_empty()) else {
            let share_of = |end| fate.ends.get(end).copied().unwrap_or((0, 1));
            let choice = match algorithm {
                LbAlgorithm::RoundRobin => Choice::InTurn,
                _ => Choice::Random,
            };
            let sum: u64 = pool.iter().map(|one| u64::from(one.weight)).sum();
            let mut pairs = pool.iter().zip(ends);
            return of.is_empty()
                && fate.choices == BTreeSet::from([choice])
                && pairs.all(|(one, end)| {
                    is_share(one.weight.into(), sum, pool.len() as u64, share_of(end))
                });
        };
        // Shares follow from the order of the slots.
        let slot = |index: &u32| {
            let address = pool.get(*index as usize)?.address;
            Some((number(address.ip()), address.port()))
        };
        let order = fingerprint(table.iter().map(slot));
        fate.choices == BTreeSet::from([Choice::Hash { of, seed: SEED, slots, order }])
    }
}

/// Whether an endpoint of this weight, of a sum of weights of so many endpoints, has its share:
/// exactly, or rounded to slots if there are many.
fn is_share(weight: u64, sum: u64, endpoints: u64, (part, whole): Share) -> bool {
    let most = EXACT.max(EXACT_EACH * endpoints);
    if sum <= most {
        return u128::from(weight) * u128::from(whole) == u128::from(part) * u128::from(sum);
    }
    let (asked, has) = (weight as f64 / sum as f64, part as f64 / whole as f64);
    (asked - has).abs() <= (1.0 + asked * endpoints as f64) / most as f64
}

/// An address as a number.
pub fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

/// The address of a number.
pub fn address(family: Family, number: u128) -> IpAddr {
    match family {
        Family::Ip => IpAddr::V4((number as u32).into()),
        Family::Ip6 => IpAddr::V6(number.into()),
    }
}
