//! Committed rulesets are read back.

use std::time::Duration;

use switchyard_kernel::nftables::{
    ChainBase, ElementData, Elements, Family, Field, Key, OperationKind, Rule, SetDef, Transaction,
    Transport, testing::while_others_commit,
};

use super::support::{self, Nft, in_namespace, table, with_netlink};

/// The definition that was read is that of `set`. The kernel does not know of which protocol a port
/// is.
fn assert_same_set(read: &Result<SetDef, String>, set: &SetDef) {
    let read = read.as_ref().expect("readable");
    assert!(read.same_shape(set), "{read:?} {set:?}");
    assert_eq!(read.comment, set.comment);
}

/// Asserts that the table holds what the transaction has.
pub fn assert_holds(transport: &mut impl Transport, transaction: &Transaction, family: Family) {
    let of_family = || transaction.operations().iter().filter(|o| o.table == table(family));
    let by_netlink = transport.port().is_some();
    let dump =
        transport.read(&table(family), Elements::Include).unwrap().expect("there is a table");
    assert_eq!(dump.table, table(family));
    let (mut chains, mut sets) = (0, 0);
    let mut rules: std::collections::BTreeMap<_, Vec<_>> = dump
        .chains
        .iter()
        .map(|(name, chain)| (name.clone(), chain.rules.iter().rev().collect()))
        .collect();
    let mut elements: std::collections::BTreeMap<_, Vec<_>> = dump
        .sets
        .iter()
        .map(|(name, set)| {
            // Packets add elements to sets with a timeout; nft lists them nevertheless.
            let is_timed = set.definition.as_ref().is_ok_and(|set| set.timeout.is_some());
            assert_eq!(set.elements.is_none(), is_timed && by_netlink, "{name}");
            (name.clone(), set.elements.clone().unwrap_or_default())
        })
        .collect();
    for operation in of_family() {
        match &operation.kind {
            OperationKind::AddBaseChain(base) => {
                chains += 1;
                assert_eq!(dump.chains[&base.name].base, ChainBase::Base(base.clone()));
            }
            OperationKind::AddChain(name) => {
                chains += 1;
                assert_eq!(dump.chains[name].base, ChainBase::Regular);
            }
            OperationKind::AddSet(set) => {
                sets += 1;
                assert_same_set(&dump.sets[&set.name].definition, set);
            }
            OperationKind::AddRule(chain, rule) => {
                let found = rules.get_mut(chain).unwrap().pop().expect("a rule is missing");
                assert_eq!(found.fingerprint, Some(rule.fingerprint(family)), "{operation}");
            }
            OperationKind::AddElements(set, added) => {
                let found = elements.get_mut(&set.name).unwrap();
                for element in added {
                    let mut wanted = element.clone();
                    if let Some(comment) = &mut wanted.comment {
                        *comment = comment.chars().take(128).collect();
                    }
                    let index = found.iter().position(|found| found.element == wanted);
                    found.swap_remove(index.unwrap_or_else(|| panic!("{}", element.display(set))));
                }
            }
            _ => {}
        }
    }
    assert_eq!(dump.chains.len(), chains);
    assert_eq!(dump.sets.len(), sets);
    assert!(rules.values().all(Vec::is_empty), "{rules:?}");
    assert!(elements.values().all(Vec::is_empty), "{elements:?}");
}

#[test]
fn everything_is_read_back() {
    with_netlink(|mut netlink| {
        let transaction = support::everything();
        netlink.commit(&transaction).unwrap();
        for family in Family::ALL {
            assert_holds(&mut netlink, &transaction, family);
        }
    });
}

#[test]
fn rules_restored_from_text_have_no_fingerprint() {
    let nft = Nft::installed();
    with_netlink(|mut netlink| {
        let takes = |family, rule: &Rule| nft.takes(family, rule);
        netlink.commit(&support::everything_with(takes)).unwrap();
        let saved = nft.list();
        nft.flush();
        nft.load(&saved);
        for family in Family::ALL {
            let dump = netlink.read(&table(family), Elements::Omit).unwrap().unwrap();
            let rules: Vec<_> = dump.chains.values().flat_map(|chain| &chain.rules).collect();
            let count =
                support::rules(family).iter().filter(|(_, rule)| takes(family, rule)).count();
            assert_eq!(rules.len(), count);
            assert!(rules.iter().all(|rule| rule.fingerprint.is_none()));
            // The definitions of sets and maps do not depend on the program that wrote them.
            for set in support::Sets::new(family).all() {
                assert_same_set(&dump.sets[&set.name].definition, set);
            }
        }
    });
}

#[test]
fn other_tables_are_left_out_and_other_definitions_are_recognised() {
    let nft = Nft::installed();
    in_namespace(|| {
        nft.load(
            "table ip other {
                 chain foreign { }
                 set cluster-ips { type ipv4_addr; }
             }
             table ip kube-proxy {
                 set marks { type mark; }
                 set ranges { type ipv4_addr; flags interval; elements = { 10.0.0.0/8 } }
                 set services { type inet_service; flags interval; elements = { 80-90 } }
                 set merging { type ipv4_addr; flags interval; auto-merge; }
                 map ports { type inet_service : inet_service; elements = { 80 : 8080 } }
                 map counted { type ipv4_addr : counter; }
                 chain strict { type filter hook forward priority 0; policy drop; }
                 chain raw { type filter hook prerouting priority raw; accept; }
                 chain ours { }
             }",
        );
        let dump = support::netlink().read(&table(Family::Ip), Elements::Include).unwrap().unwrap();
        let chains: Vec<_> = dump.chains.keys().map(|name| name.as_str()).collect();
        assert_eq!(chains, ["ours", "raw", "strict"]);
        assert!(matches!(dump.chains["strict"].base, ChainBase::Foreign(_)));
        assert!(matches!(&dump.chains["raw"].base, ChainBase::Base(base) if base.priority == -300));
        assert_eq!(dump.sets.len(), 6);
        for foreign in ["marks", "services", "counted"] {
            assert!(dump.sets[foreign].definition.is_err(), "{foreign}");
            assert_eq!(dump.sets[foreign].elements, None);
        }
        let ranges = dump.sets["ranges"].elements.as_ref().unwrap();
        let keys: Vec<_> = ranges.iter().map(|range| range.element.key).collect();
        assert_eq!(keys, [Key::interval([10, 0, 0, 0].into(), [10, 255, 255, 255].into())]);
        let ports = dump.sets["ports"].elements.as_ref().unwrap();
        assert_eq!(ports[0].element.key.as_slice(), [0, 80, 0, 0]);
        assert!(matches!(ports[0].element.data, ElementData::Value(value)
            if value.as_slice() == [0x1f, 0x90, 0, 0]));
    });
}

#[test]
fn elements_with_a_timeout_are_restored_with_the_time_that_remains() {
    for family in Family::ALL {
        in_namespace(|| {
            let (table, affinity) = (table(family), support::Sets::new(family).affinity);
            let mut netlink = support::netlink();
            netlink.commit(&support::everything()).unwrap();
            assert_eq!(support::scanned(&mut netlink, &table, &affinity), Some(Vec::new()));
            let remembered = support::remembered(family, 50);
            let mut restore = Transaction::new();
            restore.restore_elements(&table, &affinity, vec![remembered.clone()]);
            netlink.commit(&restore).unwrap();
            let dump = netlink.read(&table, Elements::Include).unwrap().unwrap();
            assert_eq!(dump.sets["affinity"].elements, None, "packets add them");
            let elements = support::scanned(&mut netlink, &table, &affinity).unwrap();
            assert_eq!(elements.len(), 1);
            assert_eq!(elements[0].element, remembered.element);
            let expires = elements[0].expires.unwrap();
            assert!(expires <= Duration::from_secs(50) && expires > Duration::from_secs(20));
        });
    }
}

#[test]
fn an_element_for_all_other_keys_is_passed_over_in_a_scan() {
    in_namespace(|| {
        support::netlink().commit(&support::everything()).unwrap();
        Nft::installed().load("add element ip kube-proxy affinity { * : 192.0.2.1 . 80 }");
        let affinity = support::Sets::new(Family::Ip).affinity;
        let mut netlink = support::netlink();
        let scanned = netlink
            .scan_elements(&table(Family::Ip), &affinity, &mut |element| panic!("{element:?}"));
        assert!(scanned.unwrap());
    });
}

#[test]
fn an_element_that_has_timed_out_is_missing() {
    in_namespace(|| {
        let (table, affinity) = (table(Family::Ip), support::Sets::new(Family::Ip).affinity);
        let mut netlink = support::netlink();
        netlink.commit(&support::everything()).unwrap();
        let mut delete = Transaction::new();
        let key = support::remembered(Family::Ip, 1).element.key;
        delete.delete_elements(&table, &affinity, vec![key]);
        let error = netlink.commit(&delete).unwrap_err();
        assert!(error.is_missing(), "{error}");
        let nowhere = SetDef::set("nowhere", [Field::Ipv4Addr]);
        assert_eq!(support::scanned(&mut netlink, &table, &nowhere), None);
    });
}

#[test]
fn a_table_that_keeps_changing_can_be_read() {
    with_netlink(|mut netlink| {
        let transaction = support::everything();
        netlink.commit(&transaction).unwrap();
        let mut change = Transaction::new();
        change.add_chain(&table(Family::Ip), "other");
        change.delete_chain(&table(Family::Ip), "other");
        while_others_commit(&[&change], Duration::from_millis(2), || {
            for _ in 0..20 {
                assert_holds(&mut netlink, &transaction, Family::Ip);
            }
        });
    });
}
