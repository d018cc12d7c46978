//! Slow start: endpoints that just became ready get a growing share of new connections.
//!
//! A Service that asks has its ready addresses remembered. An address that was not among them at
//! the last resolution growing: in each tenth of the window it has a tenth more of its weight, so
//! that it has all of it from the last tenth on. The tracker has no clock: [`SlowStarts::advance`]
//! brings the time.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::{
    model::{HashMap, ServiceName},
    parsed::slice::Slice,
};

/// The steps to the full weight.
pub(crate) const STEPS: u32 = 10;

/// The Services that ask for slow start.
#[derive(Debug, Default)]
pub(crate) struct SlowStarts {
    /// The time, if there is a clock.
    now: Option<Instant>,
    services: HashMap<ServiceName, SlowStart>,
    /// The time when endpoints of a Service take their next steps.
    due: BTreeSet<(Instant, ServiceName)>,
}

/// The record of a Service that asks for slow start.
#[derive(Debug)]
struct SlowStart {
    /// The addresses that were ready, sorted.
    ready: Vec<IpAddr>,
    growing: GrowingShares,
    /// The Service's place in [`SlowStarts::due`].
    due: Option<Instant>,
}

/// The addresses of a Service that do not have their full weight yet, with the tenths that they
/// have.
#[derive(Debug, Default)]
pub(crate) struct GrowingShares {
    /// The time when the addresses became ready.
    since: BTreeMap<IpAddr, Instant>,
    tenths: BTreeMap<IpAddr, u32>,
}

impl GrowingShares {
    pub(crate) fn is_empty(&self) -> bool {
        self.tenths.is_empty()
    }

    /// The factor of the weight of an endpoint, if the full weight has so many parts.
    pub(crate) fn factor(&self, address: &IpAddr, parts: u32) -> u32 {
        self.tenths.get(address).map_or(parts, |tenths| (tenths * parts).div_ceil(STEPS))
    }

    /// Updates the tenths at this time. Returns when the next address takes a step.
    fn update(&mut self, window: Duration, now: Instant) -> Option<Instant> {
        let step = window / STEPS;
        self.tenths.clear();
        let mut next: Option<Instant> = None;
        self.since.retain(|address, since| {
            let age = now.saturating_duration_since(*since);
            let taken = u32::try_from(age.as_nanos() / step.as_nanos().max(1)).unwrap_or(STEPS);
            if taken + 1 >= STEPS {
                return false;
            }
            self.tenths.insert(*address, taken + 1);
            let due = *since + step * (taken + 1);
            next = Some(next.map_or(due, |next| next.min(due)));
            true
        });
        next
    }
}

impl SlowStarts {
    /// Sets the time. Returns the Services whose endpoints take steps.
    pub(crate) fn advance(&mut self, now: Instant) -> Vec<ServiceName> {
        self.now = Some(now);
        let mut stepping = Vec::new();
        while self.due.first().is_some_and(|(due, _)| *due <= now) {
            let Some((_, service)) = self.due.pop_first() else { break };
            if let Some(known) = self.services.get_mut(&service) {
                known.due = None;
            }
            stepping.push(service);
        }
        stepping
    }

    /// The time when an endpoint takes its next step.
    pub(crate) fn next_step(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Forgets a Service that does not ask.
    pub(crate) fn forget(&mut self, service: &ServiceName) {
        // Hardly any Service asks.
        if !self.services.is_empty()
            && let Some(SlowStart { due: Some(due), .. }) = self.services.remove(service)
        {
            self.due.remove(&(due, service.clone()));
        }
    }

    /// Brings a Service that asks up to date with its slices. Returns the addresses that ramp;
    /// `None` without a clock.
    pub(crate) fn update<'s>(
        &mut self,
        service: &ServiceName,
        window: Duration,
        slices: impl Iterator<Item = &'s Slice>,
    ) -> Option<&GrowingShares> {
        let now = self.now?;
        let endpoints = slices.flat_map(|slice| &slice.endpoints);
        let ready = endpoints.filter(|endpoint| endpoint.takes_new());
        let mut ready: Vec<IpAddr> = ready.map(|endpoint| endpoint.address).collect();
        ready.sort_unstable();
        ready.dedup();
        let known = self.services.entry(service.clone()).or_insert_with(|| SlowStart {
            // What is there when the Service begins to ask is not new.
            ready: Vec::new(),
            growing: GrowingShares::default(),
            due: None,
        });
        let growing = &mut known.growing;
        growing.since.retain(|address, _| ready.binary_search(address).is_ok());
        // Where nothing was ready, there is nothing to spare the new ones with.
        if !known.ready.is_empty() {
            let new = ready.iter().filter(|address| known.ready.binary_search(address).is_err());
            growing.since.extend(new.map(|address| (*address, now)));
        }
        known.ready = ready;
        let due = growing.update(window, now);
        if known.due != due {
            if let Some(before) = known.due {
                self.due.remove(&(before, service.clone()));
            }
            if let Some(due) = due {
                self.due.insert((due, service.clone()));
            }
            known.due = due;
        }
        Some(growing)
    }
}
