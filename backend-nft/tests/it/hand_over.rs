//! Whatever the Services: kube-proxy can take over what is rendered, and leave nothing in use.
//!
//! At a takeover it makes its base chains anew, whatever their hooks and priorities are; declares
//! its sets and maps again; writes the rules of the chains that it knows; changes the elements of
//! its maps; empties and deletes chains with a `/` in their names, and sets that are called
//! `affinity-...`; and leaves everything else. If any of that is refused, so is all of it, and if a
//! chain cannot be deleted it tries for ever.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use switchyard_core::{testing, track::Tracker};
use switchyard_kernel::nftables::{
    BaseChain, Element, ElementData, Family, Field, OperationKind, Rule, SetData, SetDef,
    Statement, Verdict,
};
use switchyard_nft::{NftConfig, render};

/// kube-proxy's chains that are no Service's.
const CHAINS: [&str; 7] = [
    "services",
    "masquerading",
    "firewall-check",
    "service-endpoints-check",
    "nodeport-endpoints-check",
    "cluster-ips-check",
    "reject-chain",
];

/// kube-proxy's base chains.
const BASE_CHAINS: [&str; 8] = [
    "filter-prerouting-pre-dnat",
    "filter-output-pre-dnat",
    "filter-input",
    "filter-forward",
    "filter-output",
    "nat-prerouting",
    "nat-output",
    "nat-postrouting",
];

/// Key and data of a set or map that kube-proxy knows.
fn upstreams(name: &str, family: Family) -> Option<(Vec<Field>, SetData)> {
    let address = match family {
        Family::Ip => Field::Ipv4Addr,
        Family::Ip6 => Field::Ipv6Addr,
    };
    let by_ip = vec![address, Field::InetProto, Field::InetService];
    let by_port = vec![Field::InetProto, Field::InetService];
    Some(match name {
        "cluster-ips" | "nodeport-ips" => (vec![address], SetData::None),
        "hairpin-connections" => {
            (vec![address, address, Field::InetProto, Field::InetService], SetData::None)
        }
        "service-ips" | "firewall-ips" | "no-endpoint-services" => (by_ip, SetData::Verdict),
        "service-nodeports" | "no-endpoint-nodeports" => (by_port, SetData::Verdict),
        _ => return None,
    })
}

/// The rules rendered for a family.
#[derive(Default)]
struct Table {
    base_chains: Vec<BaseChain>,
    chains: BTreeSet<String>,
    sets: BTreeMap<String, SetDef>,
    rules: Vec<(String, Rule)>,
    elements: Vec<(String, Element)>,
}

/// Whether kube-proxy leaves a chain alone: it deletes those with a `/` alone. Nothing leads to
/// such a chain once the base chains are kube-proxy's.
fn stays(chain: &str) -> bool {
    chain.starts_with("remember-") && !chain.contains('/')
}

fn target(verdict: &Verdict) -> Option<&str> {
    match verdict {
        Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain.as_str()),
        _ => None,
    }
}

impl Table {
    fn check(&self, family: Family) {
        for base in &self.base_chains {
            assert!(BASE_CHAINS.contains(&base.name.as_str()), "{base:?} stays");
        }
        for chain in &self.chains {
            let is_known = CHAINS.contains(&chain.as_str());
            assert!(chain.contains('/') || is_known || stays(chain), "{chain} stays");
        }
        for (name, set) in &self.sets {
            assert!(!name.starts_with("affinity-"), "{name} is deleted, while a rule uses it");
            match upstreams(name, family) {
                Some((key, data)) => {
                    assert_eq!((&set.key, &set.data, set.timeout), (&key, &data, None), "{name}");
                }
                // The elements stay; see below where they lead.
                None if name.ends_with("-affinity") => {}
                None => assert_ne!(set.data, SetData::Verdict, "{name} stays, and leads on"),
            }
            assert_eq!(name.contains("clients-"), set.timeout.is_some(), "{name}");
        }
        for (set, element) in &self.elements {
            if let ElementData::Verdict(verdict) = &element.data
                && let Some(chain) = target(verdict)
            {
                let is_emptied = upstreams(set, family).is_some();
                assert!(is_emptied || stays(chain), "{chain} stays in use by {set}");
            }
        }
        // Rules of chains that kube-proxy knows are replaced; those of others must go, or what they
        // use could not.
        for (chain, rule) in &self.rules {
            let goes = chain.contains('/') || CHAINS.contains(&chain.as_str());
            let is_base = self.base_chains.iter().any(|base| base.name.as_str() == chain);
            assert!(goes || is_base || stays(chain), "{chain} keeps {rule:?}");
            for statement in &rule.statements {
                let Statement::Verdict(verdict) = statement else { continue };
                if let Some(to) = target(verdict) {
                    assert!(!stays(chain) || stays(to), "{chain} keeps {to} in use");
                    assert!(self.chains.contains(to), "{chain} leads to {to}, which is not there");
                }
            }
        }
    }
}

fn tables(
    transaction: &switchyard_kernel::nftables::Transaction,
) -> BTreeMap<String, (Family, Table)> {
    let mut tables: BTreeMap<String, (Family, Table)> = BTreeMap::new();
    for operation in transaction.operations() {
        let (_, table) = tables
            .entry(operation.table.to_string())
            .or_insert_with(|| (operation.table.family, Table::default()));
        match operation.kind.clone() {
            OperationKind::AddBaseChain(base) => table.base_chains.push(base),
            OperationKind::AddChain(name) => drop(table.chains.insert(name.as_str().to_owned())),
            OperationKind::AddSet(set) => {
                table.sets.insert(set.name.as_str().to_owned(), SetDef::clone(&set));
            }
            OperationKind::AddRule(chain, rule) => {
                table.rules.push((chain.as_str().to_owned(), rule));
            }
            OperationKind::AddElements(set, elements) => {
                let name = set.name.as_str();
                table.elements.extend(elements.into_iter().map(|e| (name.to_owned(), e)));
            }
            OperationKind::AddTable { .. } => {}
            other => panic!("nothing else makes a table: {other:?}"),
        }
    }
    tables
}

proptest! {
    #![proptest_config(testing::proptest_config(256))]

    #[test]
    fn kube_proxy_can_take_over_whatever_is_there(
        config in testing::arbitrary_config(),
        events in testing::arbitrary_events(60),
    ) {
        let mut tracker = Tracker::new(config);
        for event in events {
            tracker.apply(event);
        }
        tracker.resolve();
        let tables = tables(&render(&NftConfig::default(), tracker.state()));
        prop_assert_eq!(tables.len(), 2);
        for (family, table) in tables.values() {
            prop_assert_eq!(table.base_chains.len(), 8);
            table.check(*family);
        }
    }
}
