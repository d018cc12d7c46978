//! A sync of changes alone, which trusts that the kernel holds what was synced.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use switchyard_core::{
    model::{IpFamily, PerFamily},
    state::ResolvedServicePort,
    transition::{Before, Transition},
};
use switchyard_netlink::ipvs::Selector;

use crate::layout::{
    Context,
    entries::{self, Need},
    exceptions::{self, Exceptions},
    servers::{self, Server},
};

/// What the changed Service ports needed and need.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// Virtual servers as they were and as they should be.
    pub(crate) servers: BTreeMap<Selector, (Option<Server>, Option<Server>)>,
    /// The change of the number of times that each thing is needed.
    pub(crate) needs: BTreeMap<Need, i64>,
    /// The families whose rules for single frontends change.
    pub(crate) exceptions: PerFamily<bool>,
}

impl Difference {
    /// Compares what changes.
    pub(crate) fn new(
        before: Before<'_>,
        change: &Transition<'_>,
        context: &Context<'_>,
        families: &PerFamily<bool>,
        local: &BTreeSet<IpAddr>,
    ) -> Self {
        let mut difference = Self::default();
        for port in change.ports().filter(|port| *families.get(port.id.family)) {
            if let Some(port) = port.before {
                difference.add(port, context, Side::Before);
            }
            if let Some(port) = port.after {
                difference.add(port, context, Side::After);
            }
            let has_any = |port: Option<&Arc<ResolvedServicePort>>| {
                port.is_some_and(|port| exceptions::has_any(port))
            };
            if has_any(port.before) || has_any(port.after) {
                let of = |port: Option<&Arc<ResolvedServicePort>>| {
                    Exceptions::of_ports(port.map(|port| &**port).into_iter(), local)
                };
                *difference.exceptions.get_mut(port.id.family) |= of(port.before) != of(port.after);
            }
        }
        if change.health_checks_changed() {
            let sides = [
                (before.health_checks(), Side::Before),
                (&change.after().health_checks, Side::After),
            ];
            for (checks, side) in sides {
                for family in IpFamily::ALL.into_iter().filter(|family| *families.get(*family)) {
                    let needs = checks.values().filter_map(|c| entries::of_health_check(c, family));
                    needs.for_each(|need| difference.count(need, side));
                }
            }
        }
        difference
    }

    fn add(&mut self, port: &Arc<ResolvedServicePort>, context: &Context<'_>, side: Side) {
        servers::of_port(port, context, |selector, server| {
            let (before, after) = self.servers.entry(selector).or_default();
            match side {
                Side::Before => *before = Some(server),
                Side::After => *after = Some(server),
            }
        });
        entries::of_port(port, context, |need| self.count(need, side));
    }

    fn count(&mut self, need: Need, side: Side) {
        *self.needs.entry(need).or_default() += match side {
            Side::Before => -1,
            Side::After => 1,
        };
    }
}

#[derive(Clone, Copy, Debug)]
enum Side {
    Before,
    After,
}
