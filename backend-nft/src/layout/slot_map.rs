//! The maps that lead from slots to endpoints: one for each protocol, since nft has no name for a port
//! whose protocol is not known that it could print, read back and use in later rules.

use std::net::SocketAddr;

use switchyard_core::{
    model::Protocol,
    state::{Frontend, PoolKind},
};

use super::drawing::Drawing;
use crate::ruleset::{Family, Field, Rule, Selector, SetDef, Statement, Value};

/// The kind of address at which traffic arrives, which decides how a Service port is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// An address of the Service: the lookup is by address, protocol and port.
    Ip,
    /// An address of the node: the lookup is by protocol and port.
    NodePort,
}

impl Scope {
    pub(crate) const ALL: [Self; 2] = [Self::Ip, Self::NodePort];

    /// The scope of a frontend.
    pub(crate) fn of(frontend: &Frontend) -> Self {
        match frontend.at.ip() {
            Some(_) => Self::Ip,
            None => Self::NodePort,
        }
    }

    /// The prefix of the names of chains.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Ip => "",
            Self::NodePort => "nodeport-",
        }
    }
}

/// Which endpoints of a Service port a map holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum SlotPool {
    /// Those that a frontend leads to; with `externalTrafficPolicy: Local`, those for clients on this
    /// node.
    Main,
    /// Those on this node, for all other clients, with `externalTrafficPolicy: Local`.
    Local,
}

impl SlotPool {
    const ALL: [Self; 2] = [Self::Main, Self::Local];

    /// The slots of a pool of a Service port with chains of its own: each pool has its own.
    pub(crate) fn apart(kind: PoolKind) -> Self {
        match kind {
            PoolKind::Cluster => Self::Main,
            PoolKind::Local => Self::Local,
        }
    }
}

/// An endpoint as the value of an element.
pub(crate) fn endpoint_value(endpoint: SocketAddr) -> Value {
    Value::new().address(endpoint.ip()).port(endpoint.port())
}

/// A map from a Service port and a slot to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlotMap {
    pub(crate) scope: Scope,
    pub(crate) pool: SlotPool,
    pub(crate) protocol: Protocol,
}

impl SlotMap {
    /// All maps.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Scope::ALL.into_iter().flat_map(|scope| {
            SlotPool::ALL.into_iter().flat_map(move |pool| {
                Protocol::ALL.into_iter().map(move |protocol| Self { scope, pool, protocol })
            })
        })
    }

    /// The place of the map in [`SlotMap::all`].
    pub(crate) fn index(self) -> usize {
        (self.scope as usize * 2 + self.pool as usize) * 3 + self.protocol as usize
    }

    /// The name of the map. Upstream has no such maps. They must not hold verdicts: upstream does not
    /// empty them when it takes over, and could not delete the chains that verdicts lead to.
    pub(crate) fn name(self) -> String {
        let local = match self.pool {
            SlotPool::Main => "",
            SlotPool::Local => "local-",
        };
        format!("{local}{}{}-endpoints", self.scope.prefix(), self.protocol.as_lower())
    }

    /// The definition for a family.
    pub(crate) fn define(self, family: Family) -> SetDef {
        let (address, port) = (family.address_field(), Field::Port(self.protocol));
        let mut key = vec![port, Field::Slot];
        let place = match self.scope {
            Scope::Ip => {
                key.insert(0, address);
                "Service IP"
            }
            Scope::NodePort => "node port",
        };
        let which = match self.pool {
            SlotPool::Main => "endpoints",
            SlotPool::Local => "endpoints on this node",
        };
        SetDef::map(self.name(), key, [address, port])
            .with_comment(format!("{which} by {place} and slot"))
    }

    /// The rule that translates packets to the endpoint in the slot that is drawn.
    pub(crate) fn balance(self, drawing: Drawing) -> Rule {
        let key = match self.scope {
            Scope::Ip => vec![Selector::DestinationAddress, Selector::DestinationPort],
            Scope::NodePort => vec![Selector::DestinationPort],
        };
        let (protocol, map) = (self.protocol, self.name().into());
        let (draw, slots) = (drawing.method.draw(), drawing.slots);
        Rule::new([Statement::DnatSlot { protocol, key, draw, slots, map }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_map_is_where_its_index_says() {
        let all: Vec<SlotMap> = SlotMap::all().collect();
        assert_eq!(all.len(), 12);
        for (index, map) in all.iter().enumerate() {
            assert_eq!(map.index(), index, "{}", map.name());
        }
        assert_eq!(all[0].name(), "tcp-endpoints");
        assert_eq!(all[11].name(), "local-nodeport-sctp-endpoints");
    }
}
