//! The stories that every backend passes, and what they need of this one.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use switchyard_core::testing::conformance::{Damage, Refusals, RefusedPart, Subject};
use switchyard_kernel::nftables::{
    ChainDump, ChainName, Element, ElementData, Elements, Family, Field, SetDef, SetDump, SetName,
    Table, TableDump, Transport, TransportError,
    json::JsonTransport,
    testing::{InterceptingTransport, spoil},
};
use switchyard_nft::NftProxier;

use crate::common::{in_namespace, netlink, over, run_nft};

switchyard_core::conformance!(netlink, Nft::default());
switchyard_core::conformance!(json, Nft::by_json(), without a monitor);

/// The backend, whose commits can be refused.
#[derive(Default)]
struct Nft {
    refusals: Refusals,
    refused_part: Arc<Mutex<Option<RefusedPart>>>,
    /// The program `nft` that commits and reads; none for netlink.
    program: Option<PathBuf>,
}

impl Nft {
    /// The backend with nft 1.1.3, which takes JSON of all our rules. By netlink where that program
    /// cannot be fetched, which is printed.
    fn by_json() -> Self {
        let program = test_netns::nft_trixie(Path::new(env!("CARGO_TARGET_TMPDIR")));
        Self { program, ..Self::default() }
    }

    /// Returns the program that lists and damages: older ones cannot list what newer ones made.
    fn nft(&self) -> PathBuf {
        self.program.clone().unwrap_or_else(|| "nft".into())
    }

    /// The wanted tables as `nft` lists them, sorted: a table is listed where it was made.
    fn tables(&self, is_wanted: fn(&str) -> bool) -> String {
        let listed = run_nft(&self.nft(), "list ruleset");
        let mut tables: Vec<&str> =
            listed.split_inclusive("\n}\n").filter(|table| is_wanted(table)).collect();
        tables.sort_unstable();
        tables.concat()
    }

    fn transport(&self) -> Box<dyn Transport> {
        match &self.program {
            Some(program) => {
                Box::new(JsonTransport::with_program(program).expect("nft takes our maps"))
            }
            None => netlink(),
        }
    }
}

impl Subject for Nft {
    type Backend = NftProxier;

    fn in_namespace<T: Send + Default>(&self, work: impl FnOnce() -> T + Send) -> T {
        in_namespace(work)
    }

    fn open(&self) -> NftProxier {
        let refusals = self.refusals.clone();
        let refused_part = self.refused_part.clone();
        let transport = InterceptingTransport::altering(self.transport(), move |transaction| {
            if let Some(part) = &*refused_part.lock().expect("no panic") {
                let (family, comment) = part.names();
                spoil(transaction, family, comment.as_deref());
            }
            match refusals.is_next_refused() {
                true => Err(TransportError::Malformed("refused by a test".to_owned())),
                false => Ok(()),
            }
        });
        over(Box::new(transport))
    }

    fn dump(&self) -> String {
        let own =
            Family::ALL.map(|family| read(family).map_or_else(String::new, |t| dump(family, t)));
        own.concat() + &self.tables(|table| !is_own(table))
    }

    fn may_remain(&self, line: &str) -> bool {
        line.contains(" shared chain ")
    }

    fn listing(&self) -> String {
        self.tables(is_own)
    }

    fn add_others(&self) {
        run_nft(
            &self.nft(),
            "add table ip theirs; add set ip theirs kept { type ipv4_addr; }; \
             add chain ip theirs services; add table inet kube-proxy; \
             add chain inet kube-proxy services; add rule inet kube-proxy services accept",
        );
    }

    fn change_others(&self) {
        run_nft(
            &self.nft(),
            "add chain ip theirs more; flush chain inet kube-proxy services; \
             delete chain ip theirs more; add rule inet kube-proxy services accept",
        );
    }

    fn damages(&self) -> Vec<Damage> {
        let damage = |script: &'static str, drift| {
            let program = self.nft();
            Damage::new(script, drift, move || drop(run_nft(&program, script)))
        };
        vec![
            damage(
                "delete table ip kube-proxy; delete table ip6 kube-proxy",
                "the table ip was missing",
            )
            .of_any_state(),
            damage("delete table ip kube-proxy", "the table ip was missing").of_any_state(),
            damage("flush chain ip kube-proxy services", "the chain ip services had other rules")
                .of_any_state(),
            damage(
                "flush map ip kube-proxy tcp-endpoints",
                "in ip tcp-endpoints was missing or altered",
            )
            .of_any_state(),
            damage("add rule ip kube-proxy services drop", "the chain ip services had other rules")
                .of_any_state(),
            damage(
                "insert rule ip6 kube-proxy filter-input accept",
                "the chain ip6 filter-input had other rules",
            )
            .of_any_state(),
            damage(
                "delete element ip kube-proxy cluster-ips-3 { 10.96.0.1 . tcp . 80 }",
                "the element 10.96.0.1 . tcp . 80 in ip cluster-ips-3 was missing or altered",
            ),
            damage(
                "add element ip kube-proxy cluster-ips { 10.96.9.9 }",
                "the element 10.96.9.9 in ip cluster-ips was added or altered",
            )
            .of_any_state(),
            damage(
                "add set ip kube-proxy theirs { type ipv4_addr; }",
                "the set ip theirs was added",
            )
            .of_any_state(),
            damage(
                "add chain ip kube-proxy theirs { type filter hook input priority 5; }; \
                 add rule ip kube-proxy theirs drop",
                "the base chain ip theirs was added",
            )
            .of_any_state(),
        ]
    }

    fn refuse(&self, transactions: Range<usize>) {
        self.refusals.set(transactions);
    }

    fn refused(&self) -> usize {
        self.refusals.count()
    }

    fn refuse_part(&self, part: Option<&RefusedPart>) {
        *self.refused_part.lock().expect("no panic") = part.cloned();
    }

    fn author(&self) -> Option<&'static str> {
        Some("nft (process ")
    }

    /// A program is run for each commit by JSON.
    fn stories(&self) -> u32 {
        if self.program.is_some() { 8 } else { 192 }
    }

    fn events(&self) -> usize {
        40
    }
}

fn is_own(table: &str) -> bool {
    ["table ip kube-proxy ", "table ip6 kube-proxy "].iter().any(|own| table.starts_with(own))
}

/// A table of the backend's, if it is there.
fn read(family: Family) -> Option<TableDump> {
    let mut transport = netlink();
    let table = Table::new(family, "kube-proxy");
    transport.read(&table, Elements::Include).expect("readable")
}

/// A table in a form that two kernels can be compared by: without handles, chains that wait for
/// their deletion, what clients left in sets, and the order of endpoints in slots, unless a hash
/// selects the slots.
fn dump(family: Family, table: TableDump) -> String {
    let mut lines = Vec::new();
    for (name, chain) in &table.chains {
        let is_shared = is_shared(name);
        if is_shared || !is_left_over(name, chain) {
            let rules: Vec<_> = chain.rules.iter().map(|rule| rule.fingerprint).collect();
            let kind = if is_shared { "shared chain" } else { "chain" };
            lines.push(format!("{kind} {name} {:?} {rules:?}", chain.base));
        }
    }
    for (name, set) in table.sets {
        match &set.definition {
            Ok(definition) => {
                // nft keeps the comments of sets if it reads text, and drops them if it reads JSON.
                let definition = SetDef { comment: None, ..definition.clone() };
                lines.push(format!("set {name} {definition:?}"));
            }
            Err(reason) => lines.push(format!("set {name} of another kind: {reason:?}")),
        }
        lines.extend(elements(&name, set));
    }
    lines.iter().map(|line| format!("{family:?} {line}\n")).collect()
}

/// The numbers of slots of which a hash selects one. In all other pools, where one is selected at
/// random or in turn, the order of slots depends on earlier states, and means nothing.
const TABLES: [usize; 3] = [1021, 4093, 16_381];

/// Chains without rules wait for their deletion.
fn is_left_over(name: &ChainName, chain: &ChainDump) -> bool {
    chain.rules.is_empty()
        && (name.as_str().contains('/') || name.as_str().starts_with("remember-"))
}

/// Chains that several Services need stay for the next one.
fn is_shared(name: &ChainName) -> bool {
    ["lb/", "sh/", "mg/"].iter().any(|lb_algorithm| {
        let slots = name.as_str().rsplit_once(lb_algorithm).map(|(_, slots)| slots);
        slots.is_some_and(|slots| slots.bytes().all(|b| b.is_ascii_digit() || b == b'/'))
    })
}

/// The elements of a set, and the pools of a map of slots.
fn elements(name: &SetName, set: SetDump) -> Vec<String> {
    let has_slots = set.definition.as_ref().is_ok_and(|d| d.key.contains(&Field::Slot));
    let mut lines = Vec::new();
    let mut pools: BTreeMap<String, BTreeMap<u32, String>> = BTreeMap::new();
    for dump in set.elements.into_iter().flatten() {
        if dump.expires.is_some() {
            continue;
        }
        let Element { key, data, comment } = dump.element;
        if !has_slots {
            lines.push(format!("element {name} {key:?} {data:?} {comment:?}"));
            continue;
        }
        let (pool, slot) = key.as_slice().split_last_chunk::<4>().expect("a slot");
        let ElementData::Value(endpoint) = data else { panic!("an endpoint") };
        let slots = pools.entry(format!("{pool:?}")).or_default();
        slots.insert(u32::from_ne_bytes(*slot), format!("{endpoint:?}"));
    }
    for (pool, slots) in pools {
        let count = u32::try_from(slots.len()).expect("few");
        assert!(slots.keys().copied().eq(0..count), "slots of {name} {pool} have no gaps");
        let mut endpoints: Vec<String> = slots.into_values().collect();
        if !TABLES.contains(&endpoints.len()) {
            endpoints.sort();
        }
        lines.push(format!("pool {name} {pool} {endpoints:?}"));
    }
    lines
}
