//! Source ranges, which may overlap.

use std::collections::BTreeSet;

use super::*;

/// The ranges that nft lists, sorted.
fn listed_ranges() -> Vec<String> {
    let listed = run("nft list set ip switchyard-ipvs allowed-sources");
    let Some((_, elements)) = listed.split_once("elements = {") else { return Vec::new() };
    let (elements, _) = elements.split_once('}').unwrap();
    let elements: BTreeSet<String> =
        elements.split(',').map(|element| element.trim().to_owned()).collect();
    elements.into_iter().collect()
}

#[test]
fn source_ranges_may_overlap() {
    in_namespace(|| {
        let mut fixture = Fixture::new();
        fixture.compare();
        let ranges = |nets: &[&str]| allowed("10.96.0.1", 53, nets);
        let listed = |nets: &[&str]| -> Vec<String> {
            nets.iter().map(|net| format!("10.96.0.1 . udp . 53 . {net}")).collect()
        };
        fixture.commit(&ranges(&["10.1.0.0/16", "10.0.0.0/8", "192.0.2.0/24"]), &[]);
        assert_eq!(listed_ranges(), listed(&["10.0.0.0/8", "192.0.2.0/24"]));
        fixture.expect_in_order();
        fixture.commit(&[], &ranges(&["10.0.0.0/8"]));
        assert_eq!(listed_ranges(), listed(&["10.1.0.0/16", "192.0.2.0/24"]));
        fixture.commit(&ranges(&["0.0.0.0/1", "128.0.0.0/1"]), &[]);
        assert_eq!(listed_ranges(), listed(&["0.0.0.0/0"]));
        fixture.expect_in_order();

        // Another wish, and a program that knows what was there: no entry is reported that was not.
        fixture.wanted = ranges(&["10.1.0.0/16", "0.0.0.0/1"]).into_iter().collect();
        let compared = fixture.compare();
        assert!(compared.missing.is_empty(), "{compared:?}");
        let stale: BTreeSet<FamilyEntry> = compared.stale.iter().copied().collect();
        assert_eq!(stale, ranges(&["192.0.2.0/24", "128.0.0.0/1"]).into_iter().collect());
        assert_eq!(listed_ranges(), listed(&["0.0.0.0/1"]));
        fixture.commit(&[], &compared.stale);
        assert_eq!(listed_ranges(), listed(&["0.0.0.0/1"]));

        // Another program's range.
        run(
            "nft add element ip switchyard-ipvs allowed-sources { 10.96.0.1 . udp . 53 . 200.0.0.0/8 }",
        );
        let foreign = ranges(&["200.0.0.0/8"]);
        assert_eq!(fixture.compare().stale, foreign);
        assert_eq!(listed_ranges(), listed(&["0.0.0.0/1"]));
        run("nft flush set ip switchyard-ipvs allowed-sources");
        assert_eq!(fixture.compare().missing.len(), 2);
        fixture.expect_in_order();

        // A frontend that is gone keeps its ranges until its other entries are gone.
        let gone: HashSet<FamilyEntry> = fixture.wanted.drain().collect();
        let stale = fixture.compare().stale;
        assert_eq!(stale.iter().copied().collect::<HashSet<_>>(), gone);
        assert_eq!(listed_ranges(), listed(&["0.0.0.0/1"]));
        fixture.commit(&[], &stale);
        assert_eq!(listed_ranges(), Vec::<String>::new());
        fixture.expect_in_order();
    });
}
