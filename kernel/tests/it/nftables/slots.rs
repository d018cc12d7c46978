//! Rules that select a slot: in turn, or by a hash of parts of the packet.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use switchyard_kernel::nftables::{
    BaseChain, ChainKind, Element, Family, Hook, Key, Rule, Selector, SlotChoice, Statement,
    Transaction, Transport, Value, json::JsonTransport,
};
use switchyard_model::Protocol;
use test_netns::run;

use super::support::{self, Nft, address, in_namespace, table};

/// Rules with every way to select a slot, for the maps of [`support::Sets`].
pub fn rules() -> Vec<Rule> {
    use Selector::{
        DestinationAddress, DestinationPort, OriginalDestinationPort, OriginalSource,
        Protocol as L4, SourceAddress, SourcePort,
    };
    let hash = |of: &[Selector], seed| SlotChoice::Hash { of: of.to_vec(), seed };
    let choices = [
        (SlotChoice::Random, 1),
        (SlotChoice::Random, 65_536),
        (SlotChoice::InTurn, 1),
        (SlotChoice::InTurn, 5),
        (hash(&[SourceAddress], 0x5357_0001), 1),
        (hash(&[SourceAddress, SourcePort], 0x5357_0001), 1021),
        (hash(&[SourcePort], 0), 16_381),
        (hash(&[L4], 1), 65_536),
        (hash(&[OriginalSource, OriginalDestinationPort], u32::MAX), 7),
    ];
    let maps = [
        (Protocol::Tcp, vec![DestinationAddress, L4, DestinationPort], "endpoints"),
        (Protocol::Udp, vec![L4, DestinationPort], "nodeport-endpoints"),
        (Protocol::Sctp, vec![DestinationAddress, DestinationPort], "sctp-endpoints"),
    ];
    let rule = |protocol, key: &[Selector], choice, slots, map: &str| {
        let (key, map) = (key.to_vec(), map.into());
        Rule::new([Statement::DnatSlot { protocol, key, choice, slots, map }])
    };
    let mut rules = Vec::new();
    for (protocol, key, map) in &maps {
        let chosen = choices.iter().cloned();
        rules.extend(chosen.map(|(choice, slots)| rule(*protocol, key, choice, slots, map)));
    }
    // With IPv6, this takes all registers that there are.
    let three = hash(&[SourceAddress, SourcePort, DestinationPort], 2);
    let key = [DestinationAddress, DestinationPort];
    rules.push(rule(Protocol::Tcp, &key, three, 1021, "tcp-endpoints"));
    // The port is in the hash alone.
    let source = hash(&[SourceAddress, SourcePort], 3);
    rules.push(rule(Protocol::Tcp, &key[..1], source, 251, "hashed-endpoints"));
    rules
}

/// The program or the transport that commits a transaction.
#[derive(Clone, Debug)]
pub enum By {
    Netlink,
    Text(Nft),
    Json(Nft),
}

impl By {
    pub fn all() -> Vec<Self> {
        let text = Nft::all().into_iter().map(Self::Text);
        std::iter::once(Self::Netlink).chain(text).chain(Nft::trixie().map(Self::Json)).collect()
    }

    pub fn commit(&self, transaction: &Transaction) {
        match self {
            Self::Netlink => drop(support::netlink().commit(transaction).unwrap()),
            Self::Text(nft) => nft.load(&transaction.to_string()),
            Self::Json(nft) => {
                JsonTransport::with_program(&nft.0).unwrap().commit(transaction).unwrap();
            }
        }
    }
}

const SLOTS: u16 = 5;
const SERVICE_PORT: u16 = 80;
const FIRST_ENDPOINT: u16 = 9000;
/// The source ports of the clients.
const CLIENTS: std::ops::Range<u16> = 40_000..40_060;

/// A node, which is a namespace with one address: there, a rule leads from a port to one of the
/// slots that it selects. Returns the slot of each client, in order.
fn slots_of_clients(by: &By, family: Family, choice: SlotChoice) -> Vec<u16> {
    in_namespace(|| {
        let node = address(family, 1);
        let at_once = if node.is_ipv6() { " nodad" } else { "" };
        run("ip link set lo up");
        run(&format!("ip address add {node} dev lo{at_once}"));
        let bind = |port| UdpSocket::bind(SocketAddr::new(node, port)).unwrap();
        wait_for_packets(&bind(FIRST_ENDPOINT), &bind(CLIENTS.end));
        by.commit(&service(family, node, choice));
        let endpoints: Vec<_> = (0..SLOTS).map(|slot| bind(FIRST_ENDPOINT + slot)).collect();
        for endpoint in &endpoints {
            endpoint.set_nonblocking(true).unwrap();
        }
        let slot_of = |client| {
            bind(client).send_to(b"hello", SocketAddr::new(node, SERVICE_PORT)).unwrap();
            let deadline = Instant::now() + Duration::from_secs(10);
            while Instant::now() < deadline {
                let got = |endpoint: &UdpSocket| endpoint.recv(&mut [0; 16]).is_ok();
                if let Some(slot) = endpoints.iter().position(got) {
                    return slot as u16;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            panic!("no endpoint got the packet of client {client} ({by:?})")
        };
        CLIENTS.map(slot_of).collect()
    })
}

/// Waits until packets pass: the kernel loses packets to an IPv6 address that was just added.
fn wait_for_packets(receiver: &UdpSocket, sender: &UdpSocket) {
    receiver.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let to = receiver.local_addr().unwrap();
    let passes = || {
        let sent = sender.send_to(b"hello", to).is_ok();
        receiver.recv(&mut [0; 16]).is_ok() && sent
    };
    assert!((0..200).any(|_| passes()), "no packet passes to {to}");
}

fn service(family: Family, node: IpAddr, choice: SlotChoice) -> Transaction {
    let (table, map) = (table(family), support::Sets::new(family).nodeport_endpoints);
    let mut transaction = Transaction::new();
    transaction.add_table(&table);
    transaction.add_set(&table, map.clone());
    let name = "output".into();
    let output = BaseChain { name, kind: ChainKind::Nat, hook: Hook::Output, priority: -100 };
    transaction.add_base_chain(&table, output);
    let balance = Statement::DnatSlot {
        protocol: Protocol::Udp,
        key: vec![Selector::Protocol, Selector::DestinationPort],
        choice,
        slots: SLOTS.into(),
        map: map.name.clone(),
    };
    transaction.add_rule(&table, "output", Rule::new([balance]));
    let element = |slot: u16| {
        let key = Key::new().protocol(Protocol::Udp).port(SERVICE_PORT).slot(slot.into());
        Element::value(key, Value::new().address(node).port(FIRST_ENDPOINT + slot))
    };
    transaction.add_elements(&table, &map, (0..SLOTS).map(element).collect());
    transaction
}

#[test]
fn nodes_with_the_same_seed_draw_the_same_slots() {
    use Selector::{SourceAddress, SourcePort};
    in_namespace(|| {
        for family in Family::ALL {
            let hash = |of: &[Selector], seed| SlotChoice::Hash { of: of.to_vec(), seed };
            let both = [SourceAddress, SourcePort];
            let slots = slots_of_clients(&By::Netlink, family, hash(&both, 0x5357_0001));
            assert!((0..SLOTS).all(|slot| slots.contains(&slot)), "{slots:?}");
            for by in By::all() {
                let again = slots_of_clients(&by, family, hash(&both, 0x5357_0001));
                assert_eq!(again, slots, "{by:?}");
            }
            let other_seed = slots_of_clients(&By::Netlink, family, hash(&both, 0x5357_0002));
            assert_ne!(other_seed, slots);
            // All clients have one address.
            let sticky =
                slots_of_clients(&By::Netlink, family, hash(&[SourceAddress], 0x5357_0001));
            assert!(sticky.iter().all(|slot| *slot == sticky[0]), "{sticky:?}");
        }
    });
}

#[test]
fn slots_in_turn_come_one_after_the_other() {
    in_namespace(|| {
        for family in Family::ALL {
            for by in By::all() {
                let slots = slots_of_clients(&by, family, SlotChoice::InTurn);
                let turns: Vec<u16> = (0..SLOTS).cycle().take(CLIENTS.len()).collect();
                assert_eq!(slots, turns, "{by:?}");
            }
        }
    });
}
