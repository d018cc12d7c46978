//! Each endpoint's share of the connections of the last moments, computed from counts.

use crate::board::{State, Tally};

/// The rate at which the past is forgotten, and at which bars follow, per frame.
#[derive(Clone, Copy, Debug)]
struct Pace {
    forget: f64,
    follow: f64,
}

/// The state kept between frames.
#[derive(Clone, Debug)]
pub struct Motion {
    pace: Pace,
    services: Vec<ServiceMotion>,
}

/// The endpoints of one Service, and, last, its refusals.
#[derive(Clone, Debug, Default)]
struct ServiceMotion {
    counts: Vec<u64>,
    rates: Vec<f64>,
    shares: Vec<f64>,
}

impl Motion {
    /// For frames that follow each other, on a screen.
    pub fn smooth() -> Self {
        Self { pace: Pace { forget: 0.15, follow: 0.35 }, services: Vec::new() }
    }

    /// For tables that each show the connections since the last table.
    pub fn exact() -> Self {
        Self { pace: Pace { forget: 1.0, follow: 1.0 }, services: Vec::new() }
    }

    /// Updates the shares from a new state.
    pub fn advance(&mut self, state: &State) {
        self.services.resize_with(state.tallies.len(), ServiceMotion::default);
        for (service, tally) in self.services.iter_mut().zip(&state.tallies) {
            service.advance(tally, self.pace);
        }
    }

    /// The share that an endpoint has of its Service's connections.
    pub fn share(&self, service: usize, endpoint: usize) -> f64 {
        let shares = self.services.get(service).map(|service| &service.shares);
        shares.and_then(|shares| shares.get(endpoint)).copied().unwrap_or(0.0)
    }
}

impl ServiceMotion {
    fn advance(&mut self, tally: &Tally, pace: Pace) {
        let endpoints = tally.endpoints.iter().map(|endpoint| endpoint.count);
        let counts: Vec<u64> = endpoints.chain([tally.refused]).collect();
        self.counts.resize(counts.len(), 0);
        self.rates.resize(counts.len(), 0.0);
        self.shares.resize(counts.len(), 0.0);
        for ((rate, now), before) in self.rates.iter_mut().zip(&counts).zip(&self.counts) {
            *rate += (now.saturating_sub(*before) as f64 - *rate) * pace.forget;
        }
        self.counts = counts;
        let sum: f64 = self.rates.iter().sum();
        for (share, rate) in self.shares.iter_mut().zip(&self.rates) {
            let target = if sum > 1e-3 { rate / sum } else { 0.0 };
            *share += (target - *share) * pace.follow;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{board::Board, cluster::CLUSTER};

    fn set(state: &mut State, counts: [u64; 4]) {
        for (endpoint, count) in state.tallies[0].endpoints.iter_mut().zip(counts) {
            endpoint.count = count;
        }
    }

    fn shares(motion: &Motion) -> [f64; 4] {
        [0, 1, 2, 3].map(|endpoint| motion.share(0, endpoint))
    }

    #[test]
    fn tables_show_what_was_since_the_last_one() {
        let mut state = Board::new(&CLUSTER).state().clone();
        let mut motion = Motion::exact();
        set(&mut state, [10, 10, 20, 0]);
        motion.advance(&state);
        assert_eq!(shares(&motion), [0.25, 0.25, 0.5, 0.0]);
        set(&mut state, [10, 20, 30, 20]);
        motion.advance(&state);
        assert_eq!(shares(&motion), [0.0, 0.25, 0.25, 0.5]);
        state.tallies[0].refused = 7;
        motion.advance(&state);
        assert_eq!(shares(&motion), [0.0; 4], "refusals are a share too");
        motion.advance(&state);
        assert_eq!(shares(&motion), [0.0; 4], "no traffic, no share");
    }

    #[test]
    fn bars_move_to_where_traffic_goes() {
        let mut state = Board::new(&CLUSTER).state().clone();
        let mut motion = Motion::smooth();
        let mut counts = [0; 4];
        let mut run = |motion: &mut Motion, frames: usize, more: [u64; 4]| {
            for _ in 0..frames {
                for (count, more) in counts.iter_mut().zip(more) {
                    *count += more;
                }
                set(&mut state, counts);
                motion.advance(&state);
            }
        };
        run(&mut motion, 1, [5, 5, 0, 0]);
        assert!(motion.share(0, 0) < 0.25, "a bar grows into its place");
        run(&mut motion, 30, [5, 5, 0, 0]);
        assert!((motion.share(0, 0) - 0.5).abs() < 0.01);
        run(&mut motion, 40, [0, 5, 5, 0]);
        assert!(motion.share(0, 0) < 0.01);
        assert!((motion.share(0, 2) - 0.5).abs() < 0.01);
    }
}
