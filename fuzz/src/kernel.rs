//! Readers of what the kernel answers and of what programs print about its tables. The bytes stand
//! for all answers to the requests of a reader.

use std::{future::Future, pin::pin, task};

use switchyard_core::model::{InterfaceAddresses, IpFamily};
use switchyard_kernel::{
    conntrack::UsageReader,
    ipset::IpSets,
    ipvs::Ipvs,
    netlink::{
        Attributes, Error, Messages,
        testing::{Traffic, replay},
    },
    nftables::{
        Elements, Family, Table, TableDump, Transport,
        gates::Chains,
        json::read_listing,
        netlink::{Listener, NetlinkTransport},
        trace::TraceListener,
    },
    route::{self, AddressAnnouncements, AddressFollower, SharedAddresses},
    xtables,
};

/// The deepest nest of attributes that is read.
const DEEPEST: u32 = 8;

/// Runs `work` with these answers of the kernel.
fn answered<T>(answers: &[u8], work: impl FnOnce() -> Result<T, Error>) -> Option<T> {
    replay(Traffic { answers: answers.to_vec(), notices: Vec::new() }, work).ok()
}

/// Polls once: in a replay, nothing comes later.
fn poll<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut task::Context::from_waker(task::Waker::noop())) {
        task::Poll::Ready(value) => Some(value),
        task::Poll::Pending => None,
    }
}

/// Messages and attributes never reach beyond their bytes.
pub fn messages(bytes: &[u8]) {
    fn walk(attributes: Attributes<'_>, depth: u32) {
        for attribute in attributes {
            let _ = (attribute.str(), attribute.be16(), attribute.be64(), attribute.ne32());
            if depth > 0 {
                walk(attribute.nested(), depth - 1);
            }
        }
    }
    let mut length = 0;
    for message in Messages::new(bytes) {
        length += 16 + message.payload.len();
        let _ = message.reply();
        walk(message.attributes(4), DEEPEST);
    }
    assert!(length <= bytes.len(), "messages are longer than what was received");
}

/// The tables that Switchyard has, by the netlink transport.
pub fn tables(answers: &[u8], notices: &[u8]) {
    let traffic = Traffic { answers: answers.to_vec(), notices: notices.to_vec() };
    replay(traffic, || {
        let mut transport = NetlinkTransport::open().unwrap();
        for family in [Family::Ip, Family::Ip6] {
            let table = Table::new(family, "kube-proxy");
            let Ok(Some(read)) = transport.read(&table, Elements::Include) else { continue };
            check(&read);
        }
    });
}

/// Elements come sorted, and none twice.
fn check(read: &TableDump) {
    for elements in read.sets.values().filter_map(|set| set.elements.as_ref()) {
        let is_sorted = elements.is_sorted_by(|a, b| a.element.key < b.element.key);
        assert!(is_sorted, "elements of {}", read.table);
    }
}

/// Notifications of commits, to the listener and to a transport that reads at the same time. The
/// first half are the answers of the transport.
pub fn notices(bytes: &[u8]) {
    let traffic = Traffic { answers: Vec::new(), notices: bytes.to_vec() };
    replay(traffic, || {
        let tables = [Family::Ip, Family::Ip6].map(|family| Table::new(family, "kube-proxy"));
        let mut listener = Listener::open(&[], tables.to_vec()).unwrap();
        if let Some(Ok((author, _))) = poll(listener.changed()) {
            let _ = author.to_string();
        }
    });
    tables(bytes, bytes);
}

/// Base chains of other programs.
pub fn gates(bytes: &[u8]) {
    answered(bytes, || Chains::list()?.closed_gates(|table| table == "kube-proxy"));
}

/// Events of traced packets.
pub fn trace(bytes: &[u8]) {
    let traffic = Traffic { answers: Vec::new(), notices: bytes.to_vec() };
    replay(traffic, || {
        for event in TraceListener::open().unwrap().receive().ok().flatten().into_iter().flatten() {
            assert!(event.headers.is_none_or(|it| it.source.is_ipv4() == it.destination.is_ipv4()));
        }
    });
}

/// Flows, and the use of the table. A request to delete a flow names one flow.
pub fn conntrack(bytes: &[u8]) {
    for message in Messages::new(&switchyard_kernel::conntrack::read_flows(bytes)) {
        assert!(message.attributes(4).find_kind(1).is_some(), "a request that means all flows");
    }
    answered(bytes, || {
        let mut reader = UsageReader::open()?;
        let usage = reader.read();
        if let Ok(usage) = usage {
            let _ = usage.percent();
        }
        reader.flows(|_| {})
    });
}

/// Virtual servers, and the real servers of each.
pub fn ipvs(bytes: &[u8]) {
    answered(bytes, || {
        let Some(mut ipvs) = Ipvs::open()? else { return Ok(()) };
        ipvs.timeouts()?;
        for server in ipvs.virtual_servers()? {
            ipvs.real_servers(&server.selector)?;
        }
        Ok(())
    });
}

/// Names of IP sets.
pub fn ipset(bytes: &[u8]) {
    answered(bytes, || IpSets::open()?.names());
}

/// Interfaces and their addresses, and announcements of changes.
pub fn route(bytes: &[u8]) {
    answered(bytes, route::bridges_of_veths);
    let traffic = Traffic { answers: bytes.to_vec(), notices: bytes.to_vec() };
    replay(traffic, || {
        let mut follower = AddressFollower::new().without("kube-ipvs0");
        poll(follower.changed());
        let mut announced = AddressAnnouncements::new("kube-ipvs0", SharedAddresses::default());
        poll(announced.differs());
    });
}

/// The output of `iptables-save`.
pub fn iptables_save(text: &str) {
    let Ok(dump) = xtables::Dump::parse(text) else { return };
    let mut rules = 0;
    for table in xtables::Table::ALL {
        for (chain, found) in dump.chains(table) {
            assert!(dump.has_chain(table, chain));
            rules += found.len();
            for rule in found {
                let target = xtables::target(rule).unwrap_or_default();
                assert!(rule.contains(target), "the target is a word of the rule");
            }
        }
    }
    assert!(rules <= dump.rule_count());
}

/// Tables of iptables-nft.
pub fn iptables_nft(bytes: &[u8]) {
    answered(bytes, || xtables::testing::count_nft_tables(IpFamily::V4));
}

/// A table of iptables-legacy, of which the chains of a program are removed.
pub fn iptables_legacy(bytes: &[u8]) {
    let owned = xtables::OwnedChains {
        prefixes: vec![(xtables::Table::Nat, "KUBE-")],
        ..xtables::OwnedChains::default()
    };
    for family in IpFamily::ALL {
        xtables::testing::without_chains(family, bytes, &owned);
    }
}

/// The output of `nft -j list table`.
pub fn nft_json(bytes: &[u8]) {
    if let Ok(read) = read_listing(&Table::new(Family::Ip, "kube-proxy"), bytes) {
        for elements in read.sets.values().filter_map(|set| set.elements.as_ref()) {
            assert!(elements.is_sorted_by_key(|found| found.element.key));
        }
    }
}
