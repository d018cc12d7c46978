//! Tables that give each endpoint of a pool its share of slots, so that a hash of a connection,
//! reduced to a slot, chooses an endpoint.
//!
//! The slots are filled as in "Maglev: A Fast and Reliable Software Network Load Balancer"
//! (Eisenbud and others, NSDI 2016, section 3.4): each endpoint has an order of all slots, which
//! follows from its address alone, and endpoints take turns to take their next free slot. A table
//! depends on nothing but the pool and the number of slots, so that all nodes with the same pool
//! have the same table; and most slots keep their endpoints when an endpoint comes or goes. An
//! endpoint with half the weight of the heaviest has half as many turns.

use std::net::{IpAddr, SocketAddr};

use crate::state::Endpoint;

/// Returns the endpoint of each slot, as an index into `pool`; no slots for an empty pool.
///
/// `slots` is a prime number, at least as large as the pool, and small enough for an index of 32
/// bits. A hundred slots for each endpoint make shares even to one in a hundred, and with two
/// hundred hardly more slots change than those of an endpoint that leaves.
pub fn table(pool: &[Endpoint], slots: usize) -> Box<[u32]> {
    const FREE: u32 = u32::MAX;
    let Some(heaviest) = pool.iter().map(|endpoint| u64::from(endpoint.weight)).max() else {
        return Box::default();
    };
    let mut orders: Vec<SlotOrder> =
        pool.iter().map(|endpoint| SlotOrder::new(endpoint.address, slots)).collect();
    // The parts of a turn that each endpoint has saved.
    let mut saved = vec![0u64; pool.len()];
    let mut table = vec![FREE; slots];
    let mut filled = 0;
    while filled < slots {
        for (index, endpoint) in pool.iter().enumerate() {
            saved[index] += u64::from(endpoint.weight.max(1));
            if saved[index] < heaviest || filled == slots {
                continue;
            }
            saved[index] -= heaviest;
            let order = &mut orders[index];
            while table[order.slot] != FREE {
                order.advance(slots);
            }
            table[order.slot] = index as u32;
            filled += 1;
        }
    }
    table.into()
}

/// The order in which an endpoint takes slots.
struct SlotOrder {
    slot: usize,
    step: usize,
}

impl SlotOrder {
    fn new(endpoint: SocketAddr, slots: usize) -> Self {
        let reduced = |seed, size: usize| (hash(endpoint, seed) % size.max(1) as u64) as usize;
        // Every step visits all slots, since their number is prime.
        Self { slot: reduced(1, slots), step: 1 + reduced(2, slots.saturating_sub(1)) }
    }

    fn advance(&mut self, slots: usize) {
        self.slot = (self.slot + self.step) % slots;
    }
}

/// Hashes an endpoint, alike on every machine and in every version of this program: FNV-1a over the
/// address and the port, with the finalizer of SplitMix64, since FNV alone hardly mixes the last
/// bytes.
fn hash(endpoint: SocketAddr, seed: u8) -> u64 {
    let (v4, v6);
    let ip: &[u8] = match endpoint.ip() {
        IpAddr::V4(ip) => {
            v4 = ip.octets();
            &v4
        }
        IpAddr::V6(ip) => {
            v6 = ip.octets();
            &v6
        }
    };
    let port = endpoint.port().to_be_bytes();
    let bytes = [seed].into_iter().chain(ip.iter().copied()).chain(port);
    let mut mixed = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(weights: &[u32]) -> Vec<Endpoint> {
        let endpoint = |(i, &weight): (usize, &u32)| Endpoint {
            address: SocketAddr::new([10, 244, (i / 200) as u8, (i % 200) as u8].into(), 8080),
            is_local: false,
            may_be_local: false,
            weight,
        };
        weights.iter().enumerate().map(endpoint).collect()
    }

    fn shares(table: &[u32], endpoints: usize) -> Vec<usize> {
        let mut shares = vec![0; endpoints];
        table.iter().for_each(|&index| shares[index as usize] += 1);
        shares
    }

    #[test]
    fn slots_are_shared_out_evenly() {
        for endpoints in [1, 2, 3, 10, 25] {
            let shares = shares(&table(&pool(&vec![1; endpoints]), 251), endpoints);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
        }
        assert_eq!(table(&[], 251).len(), 0);
    }

    #[test]
    fn weights_are_shares() {
        let weights = [1, 2, 7, 90];
        let shares = shares(&table(&pool(&weights), 1021), 4);
        for (weight, share) in weights.into_iter().zip(shares) {
            let wanted = 1021.0 * f64::from(weight) / 100.0;
            assert!((share as f64 - wanted).abs() <= 2.0, "{weight}: {share} of {wanted}");
        }
    }

    /// The share of slots that change although their endpoints stay, on average over the endpoints
    /// that may leave.
    fn needless_changes(endpoints: usize, slots: usize) -> f64 {
        let all = pool(&vec![1; endpoints]);
        let before = table(&all, slots);
        let leaving = endpoints.min(20);
        let needless = |gone: usize| {
            let mut rest = all.clone();
            let left = rest.remove(gone).address;
            let after = table(&rest, slots);
            let both = before.iter().zip(&after);
            let addresses =
                both.map(|(&b, &a)| (all[b as usize].address, rest[a as usize].address));
            addresses.filter(|(b, a)| *b != left && b != a).count()
        };
        (0..leaving).map(needless).sum::<usize>() as f64 / (leaving * slots) as f64
    }

    #[test]
    fn few_slots_change_when_an_endpoint_leaves() {
        for (endpoints, slots) in
            [(2, 1021), (6, 1021), (7, 4093), (20, 4093), (21, 16_381), (200, 16_381)]
        {
            let changes = needless_changes(endpoints, slots);
            assert!(changes < 0.02, "{changes} of {slots} slots for {endpoints} endpoints");
        }
    }

    /// Nodes agree only as long as the hash stays what it is.
    #[test]
    fn tables_stay_what_they_are() {
        assert_eq!(*table(&pool(&[1, 1, 1]), 13), [2, 2, 2, 2, 0, 1, 1, 1, 0, 0, 1, 0, 0]);
        assert_eq!(hash("[fd00::1]:53".parse().unwrap(), 1), 17_887_988_650_990_103_480);
    }
}
