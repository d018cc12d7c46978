//! Large transactions.

use std::sync::Arc;

use switchyard_kernel::nftables::{
    Element, ElementDump, Elements, Family, Key, SetDef, SetName, Transaction, Transport, Value,
    Verdict,
};
use switchyard_model::Protocol;

use super::support::{self, Nft, address, table, with_netlink};

fn key(family: Family, number: u32) -> Key {
    let [high, low] = [number >> 16, number & 0xffff];
    let address = address(family, low as u16);
    Key::new().address(address).protocol(Protocol::Tcp).port(high as u16 + 1)
}

fn load(family: Family, endpoints: &Arc<SetDef>, count: u32) -> Transaction {
    let mut transaction = Transaction::new();
    transaction.add_table(&table(family));
    transaction.add_set(&table(family), endpoints.clone());
    let elements = (0..count).map(|number| {
        let value = Value::new().address(address(family, number as u16)).port(8080);
        Element::value(key(family, number).slot(number), value)
    });
    transaction.add_elements(&table(family), endpoints, elements.collect());
    transaction
}

fn read(transport: &mut impl Transport, family: Family, set: &SetDef) -> Vec<ElementDump> {
    let name: SetName = set.name.clone();
    let mut dump = transport.read(&table(family), Elements::Include).unwrap().unwrap();
    dump.sets.remove(&name).unwrap().elements.unwrap()
}

#[test]
fn more_than_sixteen_mebibytes_in_one_transaction() {
    with_netlink(|mut netlink| {
        let endpoints = &support::Sets::new(Family::Ip6).endpoints;
        let transaction = load(Family::Ip6, endpoints, 260_000);
        let stats = netlink.commit(&transaction).unwrap();
        assert!(stats.bytes > 16 * 1024 * 1024, "{stats:?}");
        println!("{stats:?}");
        assert_eq!(read(&mut netlink, Family::Ip6, endpoints).len(), 260_000);
    });
}

#[test]
fn long_names_and_comments_fit() {
    with_netlink(|mut netlink| {
        let mut transaction = Transaction::new();
        let sets = support::add_table(&mut transaction, &table(Family::Ip6));
        let chain = format!("c{}", "x".repeat(199));
        transaction.add_chain(&table(Family::Ip6), chain.as_str());
        let elements: Vec<_> = (0..5000)
            .map(|number| {
                Element::verdict(key(Family::Ip6, number), Verdict::Goto(chain.as_str().into()))
                    .with_comment("y".repeat(500))
            })
            .collect();
        transaction.add_elements(&table(Family::Ip6), &sets.services, elements);
        netlink.commit(&transaction).unwrap();
        let found = read(&mut netlink, Family::Ip6, &sets.services);
        assert_eq!(found.len(), 5000);
        assert_eq!(found[0].element.comment.as_deref(), Some("y".repeat(128).as_str()));
        let listed = Nft::installed().list();
        assert_eq!(listed.matches(&"y".repeat(128)).count(), 5000);
    });
}
