//! Whatever changes, is refused and is damaged: in the end the kernel holds what a sync from
//! nothing puts there, and reports name what was damaged.

use std::net::IpAddr;

use proptest::{collection::vec, option, prelude::*};
use switchyard_core::{
    model::IpFamily,
    objects::Event,
    proxier::Drift,
    testing::{
        Stepped, arbitrary_config, arbitrary_event, conformance::cluster, proptest_config,
        sync_first,
    },
};
use switchyard_kernel::ipvs::Selector;

use super::model::Model;
use crate::{
    IpvsConfig,
    proxier::{IpvsProxier, commands::Named},
};

/// An incident around a sync.
#[derive(Clone, Debug)]
enum Incident {
    /// The command or address of this number is refused.
    Refused(usize),
    /// The list of real servers of this number is refused.
    Unread(usize),
    /// Another program changes the virtual server of the command of this number just before.
    Race(usize),
    /// The rules are refused from the sync of this number on, in one family or altogether.
    RulesRefused(usize, Option<bool>),
    /// The process ends, and another one starts.
    Restart,
    /// An address comes to another device, or goes from there.
    Moved(u8),
}

/// Harm that another program does.
#[derive(Clone, Copy, Debug)]
enum Harm {
    ServerDeleted,
    ServerAltered,
    ServerAdded,
    RealDeleted,
    RealAltered,
    AddressRemoved,
    AddressAdded,
    DeviceDeleted,
}

const HARMS: [Harm; 8] = [
    Harm::ServerDeleted,
    Harm::ServerAltered,
    Harm::ServerAdded,
    Harm::RealDeleted,
    Harm::RealAltered,
    Harm::AddressRemoved,
    Harm::AddressAdded,
    Harm::DeviceDeleted,
];

/// Does harm, and returns what the next report must name.
fn harm(model: &Model, harm: Harm, number: usize) -> Vec<String> {
    let mut held = model.lock();
    let takes_new = |selector: &&Selector| held.servers[*selector].1.values().any(|w| *w > 0);
    let selectors: Vec<Selector> = held.servers.keys().filter(takes_new).copied().collect();
    let addresses: Vec<IpAddr> = held.bound.iter().copied().collect();
    let of_server = |selector: &Selector| format!("server {} was", Named(selector));
    let of_address = |ip: &IpAddr| format!("address {ip} of");
    let (Some(selector), Some(ip)) = (
        selectors.get(number % selectors.len().max(1)),
        addresses.get(number % addresses.len().max(1)),
    ) else {
        return Vec::new();
    };
    let (server, reals) = held.servers.get_mut(selector).unwrap();
    let of_reals = reals.iter().find(|(_, weight)| **weight > 0).map(|(real, _)| *real).unwrap();
    let named = of_server(selector);
    match harm {
        Harm::ServerDeleted => drop(held.servers.remove(selector)),
        Harm::ServerAltered => server.flags ^= 1,
        Harm::RealDeleted => drop(reals.remove(&of_reals)),
        Harm::RealAltered => *reals.get_mut(&of_reals).unwrap() += 7,
        Harm::ServerAdded => {
            let ip = IpAddr::from([203, 0, 113, 1]);
            let new = Selector::Address { protocol: 17, ip, port: 1 };
            let mut server = server.clone();
            server.selector = new;
            held.servers.insert(new, (server, Default::default()));
            return vec![of_server(&new)];
        }
        Harm::AddressRemoved => {
            held.bound.remove(ip);
            return vec![of_address(ip)];
        }
        Harm::AddressAdded => {
            let ip = IpAddr::from([203, 0, 113, 1]);
            held.bound.insert(ip);
            return vec![of_address(&ip)];
        }
        Harm::DeviceDeleted => {
            held.bound.clear();
            return addresses.iter().map(of_address).collect();
        }
    }
    vec![named]
}

/// Asserts that the kernel holds what a sync from nothing puts there.
fn assert_as_afresh(node: &Stepped<IpvsProxier>, model: &Model, what: &str) {
    let afresh = Model::default();
    afresh.lock().elsewhere = model.lock().elsewhere.clone();
    let mut proxier = afresh.open(IpvsConfig::default());
    sync_first(&mut proxier, node.tracker.state()).unwrap();
    let (have, want) = (model.dump(), afresh.dump());
    let extra: Vec<_> = have.difference(&want).collect();
    let lacking: Vec<_> = want.difference(&have).collect();
    assert!(extra.is_empty() && lacking.is_empty(), "{what}: {extra:#?} {lacking:#?}");
    assert_eq!(*node.proxier.bound.lock(), model.lock().bound, "{what}: what the monitor expects");
}

/// Compares everything, at once or a few virtual servers in each sync.
fn compare(node: &mut Stepped<IpvsProxier>, in_parts: bool) -> Drift {
    if !in_parts {
        return node.full().drift;
    }
    node.proxier.checkup.part = 2;
    node.tracker.request_checkup();
    let mut drift = node.sync([]).drift;
    while !node.proxier.checkup.is_over() {
        let more = node.sync([]).drift;
        drift.objects += more.objects;
        drift.examples.extend(more.examples);
    }
    drift
}

fn assert_names(drift: &Drift, expected: &[String]) {
    assert_eq!(drift.objects, expected.len(), "{expected:?} {drift:?}");
    let is_expected = |example: &String| expected.iter().any(|part| example.contains(part));
    assert!(drift.examples.iter().all(is_expected), "{expected:?} {drift:?}");
}

fn incident() -> impl Strategy<Value = Incident> {
    prop_oneof![
        (0..12usize).prop_map(Incident::Refused),
        (0..6usize).prop_map(Incident::Unread),
        (0..12usize).prop_map(Incident::Race),
        (0..3usize, option::of(any::<bool>())).prop_map(|(k, v6)| Incident::RulesRefused(k, v6)),
        Just(Incident::Restart),
        (1..3u8).prop_map(Incident::Moved),
    ]
}

type Step = (Vec<Event>, Option<Incident>, Option<(Harm, usize, bool)>);

fn step() -> impl Strategy<Value = Step> {
    let harm = (proptest::sample::select(&HARMS[..]), 0..9usize, any::<bool>());
    (vec(arbitrary_event(), 1..6), option::of(incident()), option::weighted(0.3, harm))
}

fn play(node: &mut Stepped<IpvsProxier>, model: &Model, (events, incident, damage): Step) {
    for event in events {
        node.tracker.apply(event);
    }
    match incident {
        Some(Incident::Refused(number)) => {
            let mut held = model.lock();
            (held.refuse, held.is_loose) = (Some(number), true);
        }
        Some(Incident::Unread(number)) => {
            model.lock().refuse_list = Some(number);
            node.tracker.request_resync();
        }
        Some(Incident::Race(number)) => model.lock().race = Some(number),
        Some(Incident::RulesRefused(number, family)) => {
            let family = family.map(|is_v6| if is_v6 { IpFamily::V6 } else { IpFamily::V4 });
            let mut held = model.lock();
            (held.refuse_rules, held.is_loose) = (Some((number, family)), true);
        }
        Some(Incident::Restart) => {
            node.proxier = model.open(IpvsConfig::default());
            node.tracker.forget_synced();
        }
        Some(Incident::Moved(last)) => {
            let ip = IpAddr::from([192, 0, 2, last]);
            let elsewhere = &mut model.lock().elsewhere;
            if !elsewhere.remove(&ip) {
                elsewhere.insert(ip);
            }
            node.tracker.set_interface_addresses(elsewhere.iter().copied());
        }
        None => {}
    }
    node.tracker.resolve();
    let first = node.try_sync();
    assert!(
        first.is_ok()
            || matches!(incident, Some(Incident::Refused(_) | Incident::RulesRefused(..)))
    );
    {
        let mut held = model.lock();
        (held.refuse, held.refuse_rules) = (None, None);
        (held.refuse_list, held.race) = (None, None);
    }
    node.try_sync().expect("nothing is refused");
    // What could not be removed is removed by a comparison.
    assert_names(&node.full().drift, &[]);
    model.lock().is_loose = false;
    assert_as_afresh(node, model, "after a change");
    if let Some((kind, number, in_parts)) = damage {
        // Addresses without rules are another program's.
        model.lock().is_loose = matches!(kind, Harm::AddressAdded);
        let expected = harm(model, kind, number);
        assert_names(&compare(node, in_parts), &expected);
        assert_as_afresh(node, model, "after a repair");
        model.lock().is_loose = false;
        assert_names(&node.full().drift, &[]);
    }
}

proptest! {
    #![proptest_config(proptest_config(128))]

    #[test]
    fn any_story_ends_as_a_sync_from_nothing(
        config in arbitrary_config(),
        steps in vec(step(), 1..8),
    ) {
        let model = Model::default();
        let mut node = model.node(IpvsConfig::default());
        node.tracker.set_config(config);
        // Few of the Services have addresses and endpoints at once.
        node.sync(cluster());
        for step in steps {
            play(&mut node, &model, step);
        }
    }
}
