//! Shares of connections: many requests, and how many of them each endpoint answered.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::{
    chi_square::{self, LEAST_EXPECTED},
    error::Result,
    outcome::Outcome,
    probe::Probe,
    protocol::Target,
    topology::Place,
};

/// Many connections (with UDP, flows from a new port each) from a place, one after the other; and
/// the shares that endpoints must get of the connections to each target.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SharePlan {
    pub from: String,
    /// The number of the place's addresses to send from, by turns; 0 leaves the choice to the
    /// kernel.
    #[serde(default)]
    pub sources: usize,
    #[serde(deserialize_with = "crate::case::one_or_many")]
    pub to: Vec<Target>,
    /// The number of connections to each target.
    pub count: usize,
    /// The endpoints, with their shares relative to each other. No other server may answer.
    pub shares: BTreeMap<String, u32>,
    /// Whether the endpoints take turns: the connections go to the targets by turns, and of any in
    /// a row to a target, as many as the sum of all shares, each endpoint gets exactly its share.
    /// Else a target has all its connections before the next, and the numbers are compared by a
    /// [test](chi_square).
    #[serde(default)]
    pub turns: bool,
}

impl SharePlan {
    /// Rejects a plan that could not fail, or that would be judged by too few connections.
    pub(crate) fn check(&self) -> Result<(), String> {
        let sum: u64 = self.shares.values().map(|share| u64::from(*share)).sum();
        let least = self.shares.values().min().copied().unwrap_or_default();
        if self.to.is_empty() || !(2..=12).contains(&self.shares.len()) || least == 0 {
            return Err("shares need a target and 2 to 12 endpoints with a share each".to_owned());
        }
        let expected = self.count as f64 * f64::from(least) / sum as f64;
        match self.turns {
            true if (self.count as u64) < 2 * sum => {
                Err(format!("{} connections are less than two turns", self.count))
            }
            false if expected < LEAST_EXPECTED => {
                Err(format!("an endpoint with {expected} expected connections cannot be judged"))
            }
            _ => Ok(()),
        }
    }

    /// Makes all connections, and compares. The outer error is the rig's.
    pub(crate) fn run(&self, place: &Place) -> Result<Result<(), String>> {
        let (probes, targets): (Vec<_>, Vec<_>) = self.probes(place).into_iter().unzip();
        let all = match answers(place, &probes)? {
            Ok(all) => all,
            Err(mismatch) => return Ok(Err(mismatch)),
        };
        Ok(self.to.iter().enumerate().try_for_each(|(index, target)| {
            let answered = all.iter().zip(&targets).filter(|(_, of)| **of == index);
            let answers: Vec<&String> = answered.map(|(answer, _)| answer).collect();
            let at = |mismatch| format!("{} to {target}: {mismatch}", place.name);
            self.judge(&answers).map_err(at)
        }))
    }

    /// All connections in their order, each with the index of its target.
    fn probes(&self, place: &Place) -> Vec<(Probe, usize)> {
        let sources: Vec<_> = place.addresses.iter().take(self.sources).collect();
        let probe = |number: usize, target: usize| {
            let own = sources.get(number % sources.len().max(1));
            let source = own.map(|own| own.of_family(self.to[target].address.ip()));
            (Probe { source, ..Probe::new(self.to[target]) }, target)
        };
        self.order().into_iter().map(|(number, target)| probe(number, target)).collect()
    }

    /// The numbers of connections, each with the index of its target. They go to the targets by
    /// turns only if endpoints take turns too: a proxy whose endpoints do, in another order than
    /// is asked for, would give every second turn to one target.
    fn order(&self) -> Vec<(usize, usize)> {
        let of_target = |target| (0..self.count).map(move |number| (number, target));
        let mut order: Vec<_> = (0..self.to.len()).flat_map(of_target).collect();
        if self.turns {
            order.sort_by_key(|(number, _)| *number);
        }
        order
    }

    fn judge(&self, answers: &[&String]) -> Result<(), String> {
        let others: BTreeSet<&String> =
            answers.iter().copied().filter(|name| !self.shares.contains_key(*name)).collect();
        if !others.is_empty() {
            return Err(format!("{others:?} answered, which have no share"));
        }
        if self.turns {
            let sum: u32 = self.shares.values().sum();
            return answers.windows(sum as usize).try_for_each(|turn| {
                let wrong = self.shares.iter().any(|(name, share)| {
                    turn.iter().filter(|answer| **answer == name).count() != *share as usize
                });
                if wrong {
                    Err(format!("{turn:?} are no turns of {:?}", self.shares))
                } else {
                    Ok(())
                }
            });
        }
        let count = |name| answers.iter().filter(|answer| **answer == name).count() as u64;
        let observed: Vec<u64> = self.shares.keys().map(count).collect();
        let shares: Vec<u32> = self.shares.values().copied().collect();
        chi_square::test(&observed, &shares).map_err(|chi_square| {
            let observed: BTreeMap<_, _> = self.shares.keys().zip(observed).collect();
            format!(
                "the answers {observed:?} are not of the shares {:?} (chi-square {chi_square:.1})",
                self.shares
            )
        })
    }
}

/// Makes requests from a place, one after the other. Returns the endpoints that answered, or a
/// description of the first request that was not answered; the outer error is the rig's.
pub fn answers(place: &Place, probes: &[Probe]) -> Result<Result<Vec<String>, String>> {
    place.namespace.run(|| {
        let ask = |probe: &Probe| match probe.attempt() {
            Outcome::Reached { endpoint, .. } => Ok(endpoint),
            other => Err(format!("{} to {}: {other}", place.name, probe.target)),
        };
        probes.iter().map(ask).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(count: usize, shares: &[(&str, u32)], turns: bool) -> SharePlan {
        SharePlan {
            from: "client".to_owned(),
            sources: 0,
            to: vec!["udp://10.96.0.10:80".parse().unwrap()],
            count,
            shares: shares.iter().map(|(name, share)| ((*name).to_owned(), *share)).collect(),
            turns,
        }
    }

    fn judge(plan: &SharePlan, answers: &str) -> Result<(), String> {
        let names: Vec<String> = answers.chars().map(String::from).collect();
        plan.judge(&names.iter().collect::<Vec<_>>())
    }

    #[test]
    fn plans_that_show_nothing_are_rejected() {
        assert_eq!(plan(400, &[("a", 9), ("b", 1)], false).check(), Ok(()));
        for bad in [
            plan(399, &[("a", 9), ("b", 1)], false),
            plan(1000, &[("a", 1)], false),
            plan(1000, &[("a", 1), ("b", 0)], false),
            plan(5, &[("a", 2), ("b", 1)], true),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn turns_begin_anywhere_and_are_exact() {
        let even = plan(8, &[("a", 1), ("b", 1), ("c", 1)], true);
        assert_eq!(judge(&even, "bcabcabc"), Ok(()));
        assert!(judge(&even, "bcabacbc").is_err(), "a is late");
        assert!(judge(&even, "abcabcdd").is_err(), "d has no share");
        let weighted = plan(8, &[("a", 2), ("b", 1)], true);
        assert_eq!(judge(&weighted, "abaabaab"), Ok(()));
        assert!(judge(&weighted, "abbabbab").is_err());
    }
}
