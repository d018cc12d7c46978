//! ClientIP affinity as data: a Service port remembers its clients in a map, from the client's
//! address to the endpoint, whose elements time out.
//!
//! The two pools of a Service port remember their clients apart, since the pool of this node must
//! not lead to endpoints of others. A map has the timeout in its name: when that changes, clients
//! are looked up in the earlier map, too, and move by their own next connections alone.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use switchyard_core::{
    model::{Protocol, ServicePortName},
    state::{Action, Pool, PoolKind, ResolvedServicePort},
};
use switchyard_kernel::nftables::{
    ChainName, Element, Family, Field, Key, Rule, Selector, SetDef, SetName, Statement, Value,
};

use super::{
    ChainRules,
    lb_chains::{Scope, endpoint_value},
    names::{self, chain},
};

/// The most clients that are remembered for a pool. Each takes some 100 bytes of kernel memory, and
/// source addresses can be spoofed.
const MOST_CLIENTS: u32 = 524_288;

/// Both pools of a Service port.
const POOLS: [PoolKind; 2] = [PoolKind::Cluster, PoolKind::Local];

/// The endpoints of a pool, and the clients that are remembered at them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RememberedPool {
    /// The set of the endpoints.
    pub(crate) members: Arc<SetDef>,
    /// The map of clients to endpoints.
    pub(crate) clients: Arc<SetDef>,
    /// The map that remembered the clients until the timeout was changed.
    pub(crate) earlier: Option<Arc<SetDef>>,
    /// The endpoints, sorted.
    pub(crate) endpoints: Vec<SocketAddr>,
    name: Arc<ServicePortName>,
}

impl RememberedPool {
    pub(crate) fn maps(&self) -> impl Iterator<Item = &Arc<SetDef>> {
        [&self.clients].into_iter().chain(&self.earlier)
    }

    /// The elements of the set of endpoints.
    pub(crate) fn elements(&self) -> impl Iterator<Item = Element> + '_ {
        let key = |endpoint: &SocketAddr| {
            let key = Key::new().address(endpoint.ip()).protocol(self.name.protocol);
            Element::new(key.port(endpoint.port()))
        };
        self.endpoints.iter().map(key)
    }

    /// The endpoints as the map of clients has them.
    pub(crate) fn values(&self) -> impl Iterator<Item = Value> + '_ {
        self.endpoints.iter().copied().map(endpoint_value)
    }

    /// The sets in which kube-proxy remembers the clients of each endpoint.
    pub(crate) fn upstream_sets(&self) -> impl Iterator<Item = (SetName, Value)> + '_ {
        self.endpoints.iter().map(|endpoint| {
            let name = format!("{UPSTREAM_PREFIX}{}", names::endpoint_base(&self.name, endpoint));
            (name.into(), endpoint_value(*endpoint))
        })
    }
}

/// The prefix of the names of kube-proxy's sets of clients.
pub(crate) const UPSTREAM_PREFIX: &str = "affinity-";

/// The pools of a Service port that remember clients; none without affinity. There may be earlier
/// maps with another timeout.
pub(crate) fn pools(
    port: &ResolvedServicePort,
    family: Family,
    earlier: Option<Duration>,
) -> Vec<RememberedPool> {
    let Some(timeout) = port.affinity else { return Vec::new() };
    let used = POOLS.into_iter().filter(|&kind| uses(port, kind));
    used.map(|kind| pool(port, kind, timeout, earlier, family)).collect()
}

fn pool(
    port: &ResolvedServicePort,
    kind: PoolKind,
    timeout: Duration,
    earlier: Option<Duration>,
    family: Family,
) -> RememberedPool {
    let name = &port.id.name;
    let ip = family.address_field();
    let members = [ip, Field::InetProto, Field::InetService];
    let map = |timeout| {
        let map =
            SetDef::map(clients_map(name, kind, timeout), [ip], [ip, Field::Port(name.protocol)]);
        Arc::new(map.with_timeout(timeout).with_size(MOST_CLIENTS))
    };
    RememberedPool {
        members: Arc::new(SetDef::set(members_set(name, kind), members)),
        clients: map(timeout),
        earlier: earlier.map(map),
        endpoints: addresses(port.pool(kind)).collect(),
        name: Arc::new(name.clone()),
    }
}

/// Splits the name of a map of clients into what it names: the timeout, and the part that
/// identifies the Service port.
pub(crate) fn split_clients_map(name: &str) -> Option<(Duration, &str)> {
    let rest = CLIENTS.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    let (seconds, base) = rest.split_once("s-")?;
    Some((Duration::from_secs(seconds.parse().ok()?), base))
}

fn addresses(pool: &Pool) -> impl Iterator<Item = SocketAddr> + '_ {
    pool.iter().map(|endpoint| endpoint.address)
}

/// Whether a frontend of `port` leads to a pool.
fn uses(port: &ResolvedServicePort, kind: PoolKind) -> bool {
    !port.pool(kind).is_empty()
        && port.frontends.iter().any(|frontend| match frontend.action {
            Action::Pool { pool, .. } => pool == kind,
            Action::ExternalLocal => true,
            Action::DeliveredLocal => kind == PoolKind::Cluster,
            Action::Delivered { .. } | Action::Reject | Action::Drop => false,
        })
}

/// The rules of the chain of a pool that lead to the endpoint at which the client is remembered.
pub(crate) fn lookup_rules(
    port: &ResolvedServicePort,
    kind: PoolKind,
    earlier: Option<Duration>,
) -> impl Iterator<Item = Rule> {
    let name = &port.id.name;
    port.affinity.into_iter().chain(earlier).map(move |timeout| {
        let map = clients_map(name, kind, timeout);
        Rule::new([
            Statement::Protocol(name.protocol),
            Statement::DnatMap { key: vec![Selector::SourceAddress], map },
        ])
    })
}

/// The chain that remembers the clients of a Service port. Its name has no `/`, unlike those of
/// other chains of single Service ports: kube-proxy, when it takes over, deletes chains with a `/`
/// in their names, but does not delete the elements that lead to this one, so that the deletion
/// would fail.
pub(crate) fn remember_chain(name: &ServicePortName) -> ChainName {
    format!("remember-{}", names::service_port_base(name).replace('/', ".")).into()
}

pub(crate) fn remember_rules(port: &ResolvedServicePort, timeout: Duration) -> ChainRules {
    let name = &port.id.name;
    let rule = |kind| {
        Rule::new([
            Statement::Lookup {
                key: vec![
                    Selector::DestinationAddress,
                    Selector::Protocol,
                    Selector::DestinationPort,
                ],
                set: members_set(name, kind),
            },
            Statement::UpdateMap {
                protocol: name.protocol,
                key: vec![Selector::OriginalSource],
                value: vec![Selector::DestinationAddress, Selector::DestinationPort],
                map: clients_map(name, kind, timeout),
            },
        ])
    };
    let used = POOLS.into_iter().filter(|&kind| uses(port, kind));
    ChainRules::new(remember_chain(name), used.map(rule).collect())
}

/// The prefixes of the names of maps of clients, for both pools.
const CLIENTS: [&str; 2] = ["clients-", "local-clients-"];

fn clients_map(name: &ServicePortName, kind: PoolKind, timeout: Duration) -> SetName {
    let prefix = format!("{}{}s-", of_pool(CLIENTS, kind), timeout.as_secs());
    names::with_prefix(&prefix, &names::service_port_base(name)).into()
}

fn members_set(name: &ServicePortName, kind: PoolKind) -> SetName {
    let prefix = of_pool(["endpoints-", "local-endpoints-"], kind);
    names::with_prefix(prefix, &names::service_port_base(name)).into()
}

fn of_pool([cluster, local]: [&'static str; 2], kind: PoolKind) -> &'static str {
    match kind {
        PoolKind::Cluster => cluster,
        PoolKind::Local => local,
    }
}

/// A verdict map from frontends of Service ports with affinity, as a connection's first packet has
/// them, to the chains that remember clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AffinityMap {
    pub(crate) scope: Scope,
    pub(crate) protocol: Protocol,
}

impl AffinityMap {
    /// All maps, in the order of lookups.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Scope::ALL.into_iter().flat_map(|scope| {
            Protocol::ALL.into_iter().map(move |protocol| Self { scope, protocol })
        })
    }

    pub(crate) fn name(self) -> String {
        format!("{}{}-affinity", self.scope.prefix(), self.protocol.as_lower())
    }

    pub(crate) fn define(self, family: Family) -> SetDef {
        let key = match self.scope {
            Scope::Ip => vec![family.address_field(), Field::InetService],
            Scope::NodePort => vec![Field::InetService],
        };
        SetDef::verdict_map(self.name(), key).with_comment("frontends that remember clients")
    }

    /// The rule that looks up a connection's frontend.
    fn lookup(self) -> Rule {
        let key = match self.scope {
            Scope::Ip => vec![Selector::OriginalDestination, Selector::OriginalDestinationPort],
            Scope::NodePort => vec![Selector::OriginalDestinationPort],
        };
        let map = self.name().into();
        Rule::new([Statement::Protocol(self.protocol), Statement::VerdictMap { key, map }])
    }
}

/// The chain that finds the Service port of a connection that was translated.
pub(crate) fn lookup_chain() -> ChainRules {
    ChainRules::new(chain::REMEMBER_CLIENTS, AffinityMap::all().map(AffinityMap::lookup).collect())
}
