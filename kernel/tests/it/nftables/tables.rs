//! Several tables in one kernel do not touch each other.

use switchyard_kernel::nftables::{
    Elements, Family, Rule, Statement, Table, TableDump, Transaction, Transport, Verdict,
    json::JsonTransport,
};

use super::support::{self, Nft, Sets, in_namespace, table};

/// A second table of the same family, with the same names in it.
fn other(family: Family) -> Table {
    Table::new(family, "switchyard-other")
}

fn read(transport: &mut impl Transport, table: &Table) -> Option<TableDump> {
    transport.read(table, Elements::Include).unwrap()
}

/// Two tables of each family that differ in one rule, in one transaction.
fn fill(transport: &mut impl Transport) {
    let mut transaction = Transaction::new();
    for family in Family::ALL {
        for table in [table(family), other(family)] {
            let sets = support::add_table(&mut transaction, &table);
            support::add_elements(&mut transaction, &table, &sets);
        }
        let drop = Rule::new([Statement::Verdict(Verdict::Drop)]);
        transaction.add_rule(&other(family), "dropped", drop);
    }
    transport.commit(&transaction).unwrap();
}

fn assert_separate(transport: &mut impl Transport) {
    for family in Family::ALL {
        let (one, two) = (table(family), other(family));
        let [first, second] = [&one, &two].map(|table| read(transport, table).expect("a table"));
        assert_eq!((&first.table, &second.table), (&one, &two));
        assert_eq!(first.chains["dropped"].rules.len(), 0);
        assert_eq!(second.chains["dropped"].rules.len(), 1);
        let elements = |dump: &TableDump| -> Vec<_> {
            dump.sets.values().map(|set| set.elements.clone()).collect()
        };
        assert_eq!(elements(&first), elements(&second));

        // A change of one leaves the other as it is.
        let endpoints = &Sets::new(family).endpoints;
        let keys = first.sets["endpoints"].elements.iter().flatten().map(|e| e.element.key);
        let mut change = Transaction::new();
        change.delete_elements(&two, endpoints, keys.collect());
        change.flush_chain(&two, "dropped");
        transport.commit(&change).unwrap();
        assert_eq!(elements(&read(transport, &one).unwrap()), elements(&first));
        let changed = read(transport, &two).unwrap();
        assert_eq!(changed.sets["endpoints"].elements.as_deref(), Some(&[][..]));
        assert!(changed.chains["dropped"].rules.is_empty());

        // So does the end of one.
        let mut delete = Transaction::new();
        delete.delete_table(&one);
        transport.commit(&delete).unwrap();
        assert_eq!(read(transport, &one), None);
        assert!(read(transport, &two).is_some());
    }
}

#[test]
fn tables_do_not_touch_each_other() {
    in_namespace(|| {
        let mut netlink = support::netlink();
        fill(&mut netlink);
        assert_separate(&mut netlink);
        let listed = Nft::installed().list();
        assert!(!listed.contains(" kube-proxy {"), "{listed}");
        for line in ["table ip switchyard-other {", "table ip6 switchyard-other {"] {
            assert!(listed.contains(line), "{listed}");
        }
    });
}

#[test]
fn tables_do_not_touch_each_other_by_json() {
    in_namespace(|| {
        let Some(nft) = Nft::trixie() else { return };
        let mut json = JsonTransport::with_program(&nft.0).unwrap();
        fill(&mut json);
        assert_separate(&mut json);
    });
}

#[test]
fn a_table_needs_no_comment() {
    let nft = Nft::installed();
    in_namespace(|| {
        let mut transaction = Transaction::new();
        transaction.add_table(&other(Family::Ip));
        transaction.add_table_with_comment(&table(Family::Ip), "a \"quoted\" word");
        support::netlink().commit(&transaction).unwrap();
        let by_netlink = nft.list();
        assert!(by_netlink.contains("table ip switchyard-other {\n}"), "{by_netlink}");
        assert!(by_netlink.contains("comment \"a 'quoted' word\""), "{by_netlink}");
        nft.flush();
        nft.load(&transaction.to_string());
        assert_eq!(nft.list(), by_netlink);
    });
}
