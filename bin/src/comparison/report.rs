//! The comparison of what the kernel does with what objects ask for.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};

use serde::Serialize;
use switchyard_core::model::LbAlgorithm;
use switchyard_kernel::nftables::{
    Family, Table, TransportError,
    bytecode::{Budget, Choice, End, Fate, Memory, PacketField, Packets, Program},
};

use super::{
    asked::{Asked, Class, address},
    clients::{Clients, Tried},
    kube_proxy,
    objects::Objects,
};

/// The most differences that a report has, beside the first one of each Service; others are
/// counted.
/// As many are listed of those that have a reason.
const MOST: usize = 1_000;
/// The most ends that a sentence names.
const MOST_ENDS: usize = 4;

/// Packets that meet another fate than is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// The Service; `None` for addresses that no Service has.
    pub service: Option<String>,
    /// The destination, in words.
    pub to: String,
    /// The source, in words.
    pub from: String,
    /// A packet of the class.
    pub example: String,
    /// The fate that objects ask for.
    pub asked: String,
    /// The fate in the kernel.
    pub kernel: String,
    /// Whether the kernel's rules were understood.
    pub understood: bool,
    /// Why genuine kube-proxy, whose tables these are, means to do this otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The number of classes of packets that were compared.
    pub classes: usize,
    pub services: usize,
    /// The time that reading and comparing the tables took.
    pub milliseconds: u64,
    /// Whether tables are genuine kube-proxy's.
    pub of_kube_proxy: bool,
    /// Whether what differs may be a change that the running proxy has not synced yet.
    pub is_unsettled: bool,
    /// The classes that differ.
    pub differences: Vec<Difference>,
    /// The number of those that are not listed, each of a Service of which another is.
    pub more: usize,
    /// The number of packets that were sent for clients that are remembered somewhere.
    pub clients: usize,
    /// The number of such packets that were left out, as there were too many.
    pub clients_left: usize,
    /// The number of classes that differ, without those that genuine kube-proxy means.
    pub different: usize,
    /// The numbers of those that it means, by reasons.
    pub meant: BTreeMap<&'static str, usize>,
    /// Whether a family's table is missing.
    #[serde(skip)]
    pub lacks_tables: bool,
    /// The numbers of classes that differ, by Services.
    #[serde(skip)]
    pub of_services: BTreeMap<Option<String>, usize>,
}

impl Report {
    /// Compares a family's table with the objects, and adds the result. A table that changes while
    /// it is read is read again, unless `limit` has passed. What takes longer to `evaluate` once it is
    /// read is not understood.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn compare(
        &mut self,
        table: &Table,
        objects: &Objects<'_>,
        limit: Duration,
        evaluate: Duration,
    ) -> Result<(), TransportError> {
        let family = table.family;
        let Some(program) = Program::read(table, limit)? else {
            self.lacks_tables = true;
            self.add(Difference {
                service: None,
                to: format!("all Services of the table {table}"),
                from: "anywhere".to_owned(),
                example: String::new(),
                asked: "the table".to_owned(),
                kernel: "no such table, or a dormant one".to_owned(),
                understood: true,
                reason: None,
            });
            return Ok(());
        };
        let budget = &Budget::new(evaluate);
        let is_of_kube_proxy = kube_proxy::owns(&program);
        self.of_kube_proxy |= is_of_kube_proxy;
        let mut clients = Clients::default();
        objects.classes(&mut |class: Class<'_>| {
            let fates = program.fates(&class.packets, &objects.local, budget);
            let class = Rc::new(class);
            for (packets, fate) in fates {
                self.classes += 1;
                // Each class is remembered, so that later ones are compared with it.
                let are_remembered = clients.are_remembered(&class, &fate);
                if !class.asked.is(&fate) || !are_remembered {
                    let mut found = difference(family, &class, &packets, &fate, None);
                    if is_of_kube_proxy {
                        let narrow = Class { packets: packets.clone(), ..(*class).clone() };
                        found.reason = kube_proxy::reason(&narrow, objects, &fate, are_remembered);
                    }
                    self.add(found);
                }
                clients.see(&class, packets, fate);
            }
        });
        let left = clients.compare(&program, &objects.local, budget, &mut |class, tried| {
            self.classes += 1;
            self.clients += 1;
            if !tried.is_right {
                let Tried { packets, fate, endpoint, is_remembered, .. } = tried;
                let mut found = difference(family, class, packets, fate, endpoint);
                if let Some(endpoint) = endpoint.filter(|_| is_of_kube_proxy) {
                    let packets = packets.clone();
                    found.reason = class.with_client_of(endpoint, packets, |class| {
                        kube_proxy::reason(class, objects, fate, is_remembered)
                    });
                }
                self.add(found);
            }
        });
        self.clients_left += left;
        Ok(())
    }

    pub(super) fn add(&mut self, difference: Difference) {
        let is_listed = match difference.reason {
            Some(reason) => {
                let is_listed = self.meant.values().sum::<usize>() < MOST;
                *self.meant.entry(reason).or_default() += 1;
                is_listed
            }
            None => {
                let of_service = self.of_services.entry(difference.service.clone()).or_default();
                *of_service += 1;
                self.different += 1;
                self.different <= MOST || *of_service == 1
            }
        };
        match is_listed {
            true => self.differences.push(difference),
            false => self.more += 1,
        }
    }

    /// Whether the kernel does what objects ask for, but for what kube-proxy means to do otherwise.
    pub fn is_equal(&self) -> bool {
        self.different == 0
    }

    /// Returns the differences that genuine kube-proxy does not mean, as far as they are listed.
    pub fn unmeant(&self) -> impl Iterator<Item = &Difference> {
        self.differences.iter().filter(|one| one.reason.is_none())
    }
}

/// Describes a difference; of clients that are remembered at an endpoint, if there is one.
fn difference(
    family: Family,
    class: &Class<'_>,
    packets: &Packets,
    fate: &Fate,
    client_of: Option<(u128, u16)>,
) -> Difference {
    let remembered = client_of.map(|(ip, port)| {
        format!(", remembered at {}", SocketAddr::new(address(family, ip), port))
    });
    Difference {
        service: class.port.map(|port| port.id.name.service.to_string()),
        to: class.to.clone(),
        from: format!("{}{}", class.from, remembered.unwrap_or_default()),
        example: example(family, packets),
        asked: asked(family, &class.asked),
        kernel: has(family, fate),
        reason: None,
        understood: !fate.ends.keys().any(|end| matches!(end, End::Unknown(_))),
    }
}

/// The first packet of a class.
fn example(family: Family, packets: &Packets) -> String {
    let first = |field| packets.get(field).first().unwrap_or_default();
    let [source, destination] =
        [PacketField::Source, PacketField::Destination].map(|field| address(family, first(field)));
    let protocol = first(PacketField::Protocol);
    let port = first(PacketField::DestinationPort);
    format!("{source} -> {destination} protocol {protocol} port {port}")
}

fn asked(family: Family, asked: &Asked<'_>) -> String {
    match asked {
        Asked::End(one) => end(family, one),
        Asked::Pool { pool, affinity, algorithm, ends, .. } => {
            let sum: u64 = pool.iter().map(|endpoint| u64::from(endpoint.weight)).sum();
            let shares =
                pool.iter().zip(ends).map(|(endpoint, end)| (end, endpoint.weight.into(), sum));
            let by = if ends.len() > 1 { format!(" ({algorithm})") } else { String::new() };
            let remembered =
                affinity.map(|time| format!("; clients are remembered for {} s", time.as_secs()));
            listed(family, shares) + &by + &remembered.unwrap_or_default()
        }
    }
}

fn has(family: Family, fate: &Fate) -> String {
    let shares = fate.ends.iter().map(|(end, (part, whole))| (end, *part, *whole));
    let by: Vec<String> = fate.choices.iter().map(|choice| format!(" ({})", by(choice))).collect();
    let memories = fate.remembered.values().flatten();
    let memories: BTreeSet<_> = memories
        .map(|Memory { set, milliseconds, renews, .. }| (set, milliseconds, renews))
        .collect();
    let sets = memories.iter().take(MOST_ENDS).map(|(set, milliseconds, renews)| {
        let first = if **renews { "" } else { " after their first connection" };
        format!("; clients are remembered in {set} for {} s{first}", *milliseconds / 1_000)
    });
    let written: BTreeSet<&str> =
        fate.remembered.values().flatten().map(|memory| &*memory.set).collect();
    let only_asked = fate.asked.iter().filter(|set| !written.contains(&***set));
    let only_asked =
        only_asked.take(MOST_ENDS).map(|set| format!("; clients are looked up in {set}"));
    listed(family, shares) + &by.concat() + &sets.chain(only_asked).collect::<String>()
}

fn by(choice: &Choice) -> String {
    match choice {
        Choice::Random => LbAlgorithm::Random.to_string(),
        Choice::InTurn => LbAlgorithm::RoundRobin.to_string(),
        Choice::Hash { of, seed, slots, .. } => {
            format!("a hash of {of:?} to {slots} slots by the seed {seed:#x}")
        }
    }
}

fn listed<'a>(family: Family, shares: impl Iterator<Item = (&'a End, u64, u64)>) -> String {
    let all: Vec<_> = shares.collect();
    let named = all.iter().take(MOST_ENDS).map(|(one, part, whole)| match part == whole {
        true => end(family, one),
        false => format!("{} {part}/{whole}", end(family, one)),
    });
    let mut named: Vec<String> = named.collect();
    if all.len() > MOST_ENDS {
        named.push(format!("{} more", all.len() - MOST_ENDS));
    }
    named.join(", ")
}

fn end(family: Family, end: &End) -> String {
    let masqueraded = |is| if is { " masqueraded" } else { "" };
    match end {
        End::Dropped => "dropped".to_owned(),
        End::Rejected => "refused".to_owned(),
        End::Passed { to: None, masqueraded: is } => format!("not translated{}", masqueraded(*is)),
        End::Passed { to: Some((ip, port)), masqueraded: is } => {
            let to = SocketAddr::new(address(family, *ip), *port);
            format!("{to}{}", masqueraded(*is))
        }
        End::Unknown(why) => format!("not understood: {why}"),
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to, from, example, asked, kernel, .. } = self;
        write!(f, "{to}, from {from}: {kernel}; asked for: {asked}")?;
        if !example.is_empty() {
            write!(f, "; such as {example}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { classes, services, milliseconds, lacks_tables, .. } = self;
        let of = format!("{classes} classes of packets, {services} Services, in {milliseconds} ms");
        match self.different {
            0 => writeln!(f, "kernel = objects: {of}")?,
            _ if *classes == 0 && *lacks_tables => {
                writeln!(f, "kernel != objects: no table of a proxy is in this network namespace")?;
            }
            count => writeln!(f, "kernel != objects: {count} of {of}")?,
        }
        if self.of_kube_proxy {
            writeln!(f, "The tables are kube-proxy's.")?;
        }
        if self.is_unsettled {
            writeln!(f, "The proxy had changes to sync, so this may not last.")?;
        }
        for (reason, count) in &self.meant {
            writeln!(f, "{count} classes differ as meant: {reason}")?;
        }
        if let left @ 1.. = self.clients_left {
            let (tried, all) = (self.clients, self.clients + left);
            writeln!(f, "Of {all} packets of clients that may be remembered, {tried} were tried.")?;
        }
        let mut first: BTreeMap<&Option<String>, &Difference> = BTreeMap::new();
        for one in self.unmeant() {
            first.entry(&one.service).or_insert(one);
        }
        for (service, first) in first {
            write!(f, "{}: {first}", service.as_deref().unwrap_or("no Service"))?;
            match self.of_services.get(service).map_or(0, |count| count.saturating_sub(1)) {
                0 => writeln!(f)?,
                more => writeln!(f, "; and {more} more classes")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differing(service: &str, reason: Option<&'static str>) -> Difference {
        Difference {
            service: Some(service.to_owned()),
            to: "tcp 10.96.0.10, port 80".to_owned(),
            from: "other hosts".to_owned(),
            example: String::new(),
            asked: "10.1.0.5:80".to_owned(),
            kernel: "refused".to_owned(),
            understood: true,
            reason,
        }
    }

    #[test]
    fn every_service_is_named_however_many_classes_differ() {
        let mut report = Report::default();
        (0..MOST + 500).for_each(|_| report.add(differing("ns/a", Some("as meant"))));
        assert!(report.is_equal(), "{report}");
        (0..MOST + 500).for_each(|_| report.add(differing("ns/a", None)));
        report.add(differing("ns/b", None));
        assert_eq!((report.different, report.differences.len()), (MOST + 501, 2 * MOST + 1));
        let text = report.to_string();
        for part in ["objects: 1501 of", "1500 classes differ as meant", "; and 1499 more", "ns/b:"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
