//! How the chains of a pool draw one of its slots, and how many slots there are.
//!
//! With weights, an endpoint has several slots. A hash needs many more slots than endpoints, so that most
//! slots keep their endpoints when one comes or goes; these slots are filled by
//! [`maglev::table`](switchyard_core::maglev::table).

use switchyard_core::{model::LbAlgorithm, state::Pool};

use crate::ruleset::{Draw, Selector};

/// The seed of hashes. Without one, the kernel would choose one at random, and nodes would disagree.
const SEED: u32 = 0x5357_5944;

/// The sizes of tables, which are prime numbers, each with the largest number of endpoints. In these, an
/// endpoint that leaves moves less than 2 % of the slots of others. A table takes as many elements for
/// each frontend; most clients move when a pool gets a table of another size.
const TABLES: [(usize, u32); 3] = [(6, 1_021), (20, 4_093), (MOST_HASHED, 16_381)];

/// The most endpoints that connections are spread over by a hash: each has ten slots at least.
pub(crate) const MOST_HASHED: usize = 1_638;

/// Weights are exact up to this sum, or up to [`SLOTS_EACH`] for each endpoint, if that is more.
const MOST_SLOTS: u64 = 1_024;

/// The number of slots for each endpoint up to which weights are exact.
const SLOTS_EACH: u64 = 10;

/// A way to draw a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Method {
    /// At random.
    Random,
    /// One slot after the other. The counter belongs to a rule, so that the rule must be a Service
    /// port's own.
    InTurn,
    /// By a hash of the client's address.
    SourceHash,
    /// By a hash of the client's address and port.
    Maglev,
}

impl Method {
    /// The method of an algorithm. Others than these four are not among the backend's capabilities.
    pub(crate) fn of(lb_algorithm: LbAlgorithm) -> Self {
        match lb_algorithm {
            LbAlgorithm::RoundRobin => Self::InTurn,
            LbAlgorithm::SourceHash => Self::SourceHash,
            LbAlgorithm::Maglev => Self::Maglev,
            _ => Self::Random,
        }
    }

    /// Whether slots are drawn by a hash.
    pub(crate) fn is_hash(self) -> bool {
        matches!(self, Self::SourceHash | Self::Maglev)
    }

    /// The part of chains' names that is different for each method.
    pub(crate) fn stem(self) -> &'static str {
        match self {
            Self::Random => "lb",
            Self::InTurn => "rr",
            Self::SourceHash => "sh",
            Self::Maglev => "mg",
        }
    }

    /// The draw of a rule.
    pub(crate) fn draw(self) -> Draw {
        match self {
            Self::Random => Draw::Random,
            Self::InTurn => Draw::InTurn,
            Self::SourceHash => Draw::Hash { of: vec![Selector::SourceAddress], seed: SEED },
            Self::Maglev => {
                Draw::Hash { of: vec![Selector::SourceAddress, Selector::SourcePort], seed: SEED }
            }
        }
    }
}

/// How a slot of a pool is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Drawing {
    pub(crate) method: Method,
    /// The number of slots, at least 1.
    pub(crate) slots: u32,
}

impl Drawing {
    /// The drawing of a pool that is not empty.
    pub(crate) fn of(lb_algorithm: LbAlgorithm, pool: &Pool) -> Self {
        let method = Method::of(lb_algorithm);
        let slots = if method.is_hash() {
            table_size(pool.len())
        } else {
            shares(pool).map_or(pool.len() as u32, |shares| shares.iter().sum())
        };
        Self { method, slots }
    }
}

/// Returns the number of slots of a table for so many endpoints.
pub(crate) fn table_size(endpoints: usize) -> u32 {
    let fits = TABLES.iter().find(|(most, _)| endpoints <= *most);
    fits.or(TABLES.last()).map_or(0, |(_, slots)| *slots)
}

/// Returns the number of slots of each endpoint, drawn without a hash; `None` if that is one for each.
pub(crate) fn shares(pool: &Pool) -> Option<Vec<u32>> {
    if pool.iter().all(|endpoint| endpoint.weight == 1) {
        return None;
    }
    let sum: u64 = pool.iter().map(|endpoint| u64::from(endpoint.weight)).sum();
    let most = MOST_SLOTS.max(SLOTS_EACH * pool.len() as u64);
    if sum <= most {
        return Some(pool.iter().map(|endpoint| endpoint.weight).collect());
    }
    let share = |weight: u32| (u64::from(weight) * most).saturating_add(sum / 2) / sum;
    Some(pool.iter().map(|endpoint| share(endpoint.weight).max(1) as u32).collect())
}

#[cfg(test)]
mod tests {
    use switchyard_core::state::Endpoint;

    use super::*;

    fn pool(weights: &[u32]) -> Pool {
        let endpoint = |(i, &weight): (usize, &u32)| Endpoint {
            address: ([10, 0, 0, 1], 1 + i as u16).into(),
            is_local: false,
            may_be_local: false,
            weight,
        };
        weights.iter().enumerate().map(endpoint).collect()
    }

    #[test]
    fn weights_are_numbers_of_slots() {
        assert_eq!(shares(&pool(&[1, 1, 1])), None);
        assert_eq!(shares(&pool(&[7, 3])), Some(vec![7, 3]));
        assert_eq!(shares(&pool(&[1023, 1])), Some(vec![1023, 1]));
        assert_eq!(Drawing::of(LbAlgorithm::RoundRobin, &pool(&[7, 3])).slots, 10);
        assert_eq!(Drawing::of(LbAlgorithm::Random, &pool(&[1, 1, 1])).slots, 3);
    }

    #[test]
    fn large_weights_are_rounded_and_none_is_lost() {
        assert_eq!(shares(&pool(&[40_000, 20_000, 1])), Some(vec![683, 341, 1]));
        let largest = shares(&pool(&[u32::MAX, 1])).unwrap();
        assert_eq!(largest, [1024, 1]);
        // Ten for each endpoint, as endpoints that start slowly need.
        let mut weights = vec![10; 500];
        weights[0] = 1;
        assert_eq!(shares(&pool(&weights)), Some(weights));
    }

    #[test]
    fn tables_are_sized_by_pool() {
        let sizes = [1, 6, 7, 20, 21, 1_638, 5_000].map(table_size);
        assert_eq!(sizes, [1_021, 1_021, 4_093, 4_093, 16_381, 16_381, 16_381]);
        assert_eq!(Drawing::of(LbAlgorithm::Maglev, &pool(&[9, 1])).slots, 1_021);
    }
}
