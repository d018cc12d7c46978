//! Stories without faults on the kernel itself and on its model, which are to hold the same in the
//! end: what the simulation shows of the model is true.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};
use switchyard_core::testing::{Stepped, arbitrary_config, arbitrary_event, proptest_config};
use switchyard_kernel::nftables::{
    Elements, Family, Table, Transport,
    netlink::NetlinkTransport,
    testing::{InterceptingTransport, Kernel},
};
use test_netns::in_namespace;

use super::{super::parts::UNDIVIDED, proxier};
use crate::layout::names::KUBE_PROXY;

/// The contents of a table, without handles: the chains with their rules, and the sets with their
/// elements.
fn held(transport: &mut dyn Transport, family: Family) -> BTreeMap<String, Vec<String>> {
    let table = Table::new(family, KUBE_PROXY);
    let Some(dump) = transport.read(&table, Elements::Include).expect("a table") else {
        return BTreeMap::new();
    };
    let chains = dump.chains.iter().map(|(name, chain)| {
        let rules = chain.rules.iter().map(|rule| format!("{:?}", rule.fingerprint));
        (format!("chain {name} {:?}", chain.base), rules.collect())
    });
    // The kernel keeps other words for types, and a part of comments.
    let sets = dump.sets.iter().map(|(name, set)| {
        let elements = set.elements.iter().flatten().map(|dump| format!("{:?}", dump.element));
        let timeout = set.definition.as_ref().expect("of ours").timeout;
        (format!("set {name} {timeout:?}"), elements.collect())
    });
    chains.chain(sets).collect()
}

proptest! {
    #![proptest_config(proptest_config(10))]

    #[test]
    fn a_story_leaves_the_same_in_the_kernel_and_in_its_model(
        config in arbitrary_config(),
        steps in vec(vec(arbitrary_event(), 1..6), 1..16),
        divided: bool,
    ) {
        in_namespace(move || {
            let open = || NetlinkTransport::open().expect("netlink is there");
            let (mut kernel, mut model) = (open(), Kernel::default());
            let undivided = if divided { 0 } else { UNDIVIDED };
            let beside = model.clone();
            let both = InterceptingTransport::committing(Box::new(open()), move |kernel, changes| {
                let stats = kernel.commit(changes)?;
                // The generations of the model are its own.
                beside.commit_of_other(changes).expect("the kernel commits it");
                Ok(stats)
            });
            let proxier = proxier(both, undivided);
            let mut node = Stepped::new(config, proxier);
            for events in steps {
                for event in events {
                    node.tracker.apply(event);
                }
                node.tracker.resolve();
                node.try_sync().expect("a sync");
                for family in Family::ALL {
                    assert_eq!(held(&mut kernel, family), held(&mut model, family), "{family}");
                }
            }
        });
    }
}
