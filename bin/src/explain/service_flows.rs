//! Counts of connection tracking's entries for all Services at once.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use switchyard::conntrack::{StuckLimit, TrackedFlow};
use switchyard_core::{
    model::{Protocol, ServiceName},
    state::ResolvedServicePort,
};

use super::flows::FlowReader;

/// The least time between two counts, which are the ends of what a rate is measured over.
pub(super) const LEAST: Duration = Duration::from_millis(900);
/// The longest time that a rate is measured over, as entries of UDP may end after 30 s; or that in
/// which no other walk may begin, if that is longer.
const LONGEST: Duration = Duration::from_secs(30);
/// The most entries that are remembered from a walk to the next, about 1.2 MB.
const MOST_REMEMBERED: usize = 1 << 16;

pub type Services = BTreeMap<ServiceName, Vec<Arc<ResolvedServicePort>>>;

/// The counts of a Service; `None` where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServiceCounts {
    pub flows: Option<u64>,
    /// Those that are stuck.
    pub stuck: Option<u64>,
    /// Those that the walk before had not seen, for each second between the two.
    pub new_per_second: Option<f64>,
}

/// The counts of a walk.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    services: HashMap<ServiceName, ServiceCounts>,
    /// The counts of Services without entries.
    others: ServiceCounts,
}

impl Counts {
    pub fn of(&self, service: &ServiceName) -> ServiceCounts {
        self.services.get(service).copied().unwrap_or(self.others)
    }
}

/// The last walk, kept for the next one.
#[derive(Debug, Default)]
pub struct ServiceFlows(Mutex<Option<Last>>);

#[derive(Debug)]
struct Last {
    ended: Instant,
    took: Duration,
    seen: Sample,
    counts: Counts,
}

impl ServiceFlows {
    /// Counts the entries by Service, or returns the last counts, unless these are old, if no walk
    /// may begin. At node ports of the addresses `here`, the proxy itself answers, and no endpoint.
    pub fn count(&self, reader: &FlowReader, services: &Services, here: &[IpAddr]) -> Counts {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let keep = |last: &Last| LONGEST.max(12 * last.took);
        let before = last.take().filter(|last| last.ended.elapsed() <= keep(last));
        let limit = StuckLimit::read();
        let mut tally = Tally::new(services, here);
        let begun = Instant::now();
        let walked = reader.walk(|flow| {
            let is_stuck = limit.is_some_and(|limit| limit.is_stuck(flow));
            tally.add(flow, is_stuck);
        });
        let now = Instant::now();
        if walked.is_err() {
            *last = before;
            return last.as_ref().map(|last| last.counts.clone()).unwrap_or_default();
        }
        let before = before.map(|last| (last.seen, now.saturating_duration_since(last.ended)));
        let (counts, seen) = tally.end(limit.is_some(), before);
        last.insert(Last { ended: now, took: now - begun, seen, counts }).counts.clone()
    }
}

/// The ids of entries with their Services: all, or of a large table those whose lowest bits are 0.
/// Ids are hashes, so that these are a fair part.
#[derive(Debug, Default)]
struct Sample {
    mask: u32,
    ids: HashMap<u32, u32>,
}

impl Sample {
    fn add(&mut self, id: u32, service: u32) {
        if id & self.mask != 0 {
            return;
        }
        self.ids.insert(id, service);
        while self.ids.len() > MOST_REMEMBERED {
            self.mask = self.mask << 1 | 1;
            let mask = self.mask;
            self.ids.retain(|id, _| id & mask == 0);
        }
    }

    /// Returns the Service of each entry that was not seen before, with the number of entries that
    /// it stands for.
    fn unseen<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (u32, u64)> + 'a {
        let mask = self.mask | before.mask;
        let new = self.ids.iter().filter(move |(id, _)| *id & mask == 0);
        new.filter(|(id, _)| !before.ids.contains_key(id))
            .map(move |(_, service)| (*service, u64::from(mask) + 1))
    }
}

/// The counts while a walk goes on.
struct Tally<'a> {
    names: Vec<&'a ServiceName>,
    /// The flows and stuck flows of each Service.
    counts: Vec<(u64, u64)>,
    addresses: HashMap<(Protocol, SocketAddr), usize>,
    node_ports: HashMap<(Protocol, u16), Vec<(usize, &'a ResolvedServicePort)>>,
    here: &'a [IpAddr],
    sample: Sample,
}

impl<'a> Tally<'a> {
    fn new(services: &'a Services, here: &'a [IpAddr]) -> Self {
        let (mut addresses, mut node_ports) = (HashMap::new(), HashMap::<_, Vec<_>>::new());
        let ports = services.values().enumerate();
        for (index, port) in
            ports.flat_map(|(index, ports)| ports.iter().map(move |it| (index, it)))
        {
            let protocol = port.id.name.protocol;
            for front in &port.frontends {
                match front.at.ip() {
                    Some(ip) => {
                        addresses.insert((protocol, SocketAddr::new(ip, front.port)), index);
                    }
                    None => {
                        node_ports
                            .entry((protocol, front.port))
                            .or_default()
                            .push((index, &**port));
                    }
                }
            }
        }
        let names: Vec<_> = services.keys().collect();
        let counts = vec![(0, 0); names.len()];
        Self { names, counts, addresses, node_ports, here, sample: Sample::default() }
    }

    fn add(&mut self, flow: &TrackedFlow, is_stuck: bool) {
        let (to, by) = (flow.destination, flow.answered_by);
        let is_here = |port: &ResolvedServicePort| {
            self.here.contains(&to.ip()) || (to != by && port.serves(by))
        };
        let found = self.addresses.get(&(flow.protocol, to)).copied().or_else(|| {
            let ports = self.node_ports.get(&(flow.protocol, to.port()))?;
            ports.iter().find(|(_, port)| is_here(port)).map(|(index, _)| *index)
        });
        if let Some(index) = found {
            self.counts[index].0 += 1;
            self.counts[index].1 += u64::from(is_stuck);
            self.sample.add(flow.id, index as u32);
        }
    }

    /// Returns the counts, with rates if the entries of a walk before are known.
    fn end(self, knows_stuck: bool, before: Option<(Sample, Duration)>) -> (Counts, Sample) {
        let mut new = vec![0; self.names.len()];
        if let Some((seen, _)) = &before {
            self.sample.unseen(seen).for_each(|(index, number)| new[index as usize] += number);
        }
        let counts = |(flows, stuck), new: u64| ServiceCounts {
            flows: Some(flows),
            stuck: knows_stuck.then_some(stuck),
            new_per_second: before.as_ref().map(|(_, time)| new as f64 / time.as_secs_f64()),
        };
        let found = self.names.iter().zip(self.counts).zip(new);
        let services = found
            .filter(|((_, (flows, _)), _)| *flows > 0)
            .map(|((name, found), new)| ((*name).clone(), counts(found, new)))
            .collect();
        (Counts { services, others: counts((0, 0), 0) }, self.sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_table_is_sampled() {
        let hash = |number: u32| {
            let mixed = number.wrapping_mul(0x9e37_79b1);
            (mixed ^ mixed >> 15).wrapping_mul(0x85eb_ca6b).rotate_left(16)
        };
        let sample = |numbers: std::ops::Range<u32>| {
            let mut sample = Sample::default();
            numbers.for_each(|number| sample.add(hash(number), number % 2));
            sample
        };
        let new = |a: &Sample, b: &Sample, service: u32| -> u64 {
            b.unseen(a).filter(|(of, _)| *of == service).map(|(_, number)| number).sum()
        };
        let small = [sample(0..1000), sample(500..1500)];
        assert_eq!((new(&small[0], &small[1], 0), new(&small[0], &small[1], 1)), (250, 250));
        let large = [sample(0..300_000), sample(100_000..400_000)];
        assert!(large.iter().all(|one| one.ids.len() <= MOST_REMEMBERED && one.mask == 7));
        for service in [0, 1] {
            let found = new(&large[0], &large[1], service);
            assert!((45_000..55_000).contains(&found), "{found}");
        }
    }
}
