//! Round robin: endpoints take turns.
//!
//! With the same weight for all, a counter goes round the endpoints in the order of their
//! addresses. With weights, each endpoint has the time of its next turn, the further apart, the
//! less the weight (stride scheduling: Waldspurger and Weihl, MIT/LCS/TM-528, 1995). Where an
//! endpoint begins is random, so that nodes do not march in step.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    net::SocketAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use switchyard_core::state::Endpoint;

use super::random;

/// The time between two turns of an endpoint with weight 1. Fine enough for weights of 32 bits.
const ROUND: u128 = 1 << 48;

pub(super) enum RoundRobin {
    /// The number of endpoints, and the turns so far.
    Even(usize, AtomicUsize),
    Weighted(Mutex<Schedule>),
}

pub(super) struct Schedule {
    /// The time of each endpoint's next turn, and its index.
    next: BinaryHeap<Reverse<(u128, u32)>>,
    strides: Box<[u128]>,
}

impl RoundRobin {
    /// Goes on where `before` is, which is for another pool.
    pub(super) fn new(pool: &[Endpoint], before: Option<(&Self, &[Endpoint])>) -> Self {
        if random::is_even(pool) {
            let next = match before {
                Some((Self::Even(len, turns), before)) if *len > 0 => {
                    let next = before[turns.load(Ordering::Relaxed) % len].address;
                    pool.partition_point(|endpoint| endpoint.address < next)
                }
                _ => random::below(pool.len().max(1) as u64) as usize,
            };
            return Self::Even(pool.len(), AtomicUsize::new(next));
        }
        let mut times: HashMap<SocketAddr, u128> = HashMap::new();
        let mut now = 0;
        if let Some((Self::Weighted(schedule), before)) = before {
            let schedule = lock(schedule);
            now = schedule.next.peek().map_or(0, |Reverse((time, _))| *time);
            let known = schedule.next.iter();
            times.extend(known.map(|Reverse((time, i))| (before[*i as usize].address, *time)));
        }
        let strides: Box<[u128]> =
            pool.iter().map(|endpoint| ROUND / u128::from(endpoint.weight.max(1))).collect();
        let turn = |(i, endpoint): (usize, &Endpoint)| {
            let known = times.get(&endpoint.address).copied();
            // Not later than a turn from now: the weight may have grown.
            let known = known.map(|time| time.min(now + strides[i]));
            let time = known.unwrap_or_else(|| now + u128::from(random::below(strides[i] as u64)));
            Reverse((time, i as u32))
        };
        let next = pool.iter().enumerate().map(turn).collect();
        Self::Weighted(Mutex::new(Schedule { next, strides }))
    }

    /// Returns the index of the next endpoint. The pool is not empty.
    pub(super) fn next(&self) -> usize {
        match self {
            Self::Even(len, turns) => turns.fetch_add(1, Ordering::Relaxed) % len,
            Self::Weighted(schedule) => {
                let Schedule { next, strides } = &mut *lock(schedule);
                let Some(mut first) = next.peek_mut() else { return 0 };
                let Reverse((time, index)) = &mut *first;
                let index = *index as usize;
                *time += strides[index];
                index
            }
        }
    }
}

fn lock(schedule: &Mutex<Schedule>) -> MutexGuard<'_, Schedule> {
    schedule.lock().unwrap_or_else(PoisonError::into_inner)
}
