//! The ports that flows come from.
//!
//! A socket that connects without a port of its own gets one that no other socket of the node has,
//! so that all flows and all other programs together could have some 28,000. Flows to different
//! endpoints share ports instead, and leave a third of the ports to others.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use socket2::Socket;

use crate::{
    balance::random::below,
    slots::{LimitReached, count_down},
};

/// The ports of all flows. Empty where the system chooses the ports.
pub(crate) struct SourcePorts {
    ports: Box<[u16]>,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    endpoints: HashMap<SocketAddr, Endpoint>,
    /// The number of flows that have each port.
    flows: Vec<u32>,
}

/// The flows of an endpoint.
struct Endpoint {
    /// A bit for each port, in words.
    is_taken: Box<[u64]>,
    flows: usize,
    sources: HashMap<IpAddr, usize>,
}

/// The port of a flow, until it is dropped.
pub(crate) struct SourcePort {
    ports: Arc<SourcePorts>,
    endpoint: SocketAddr,
    source: IpAddr,
    index: usize,
    /// Whether no other flow has the port.
    is_alone: bool,
}

impl SourcePorts {
    /// Flows have the upper two thirds of the ports, most of which are far from those that servers
    /// have.
    pub(crate) fn new(mut ports: Vec<u16>) -> Arc<Self> {
        let ports = ports.split_off(ports.len() / 3);
        let taken = Taken { flows: vec![0; ports.len()], ..Taken::default() };
        Arc::new(Self { ports: ports.into(), taken: Mutex::new(taken) })
    }

    /// Takes a port that no flow to the endpoint has, or `None` where the system chooses. The limit
    /// is a dynamic threshold as in [`slots`](crate::slots): a client may have as many as are free.
    pub(crate) fn take(
        self: &Arc<Self>,
        endpoint: SocketAddr,
        source: IpAddr,
    ) -> Result<Option<SourcePort>, LimitReached> {
        if self.ports.is_empty() {
            return Ok(None);
        }
        let mut taken = self.lock();
        let Taken { endpoints, flows } = &mut *taken;
        let of_endpoint = endpoints.entry(endpoint).or_insert_with(|| Endpoint::new(flows.len()));
        let free = flows.len() - of_endpoint.flows;
        let of_source = of_endpoint.sources.get(&source).copied().unwrap_or(0);
        let index = of_endpoint.free().ok_or(LimitReached::Endpoint)?;
        if of_source >= free {
            return Err(LimitReached::Client);
        }
        of_endpoint.is_taken[index / 64] |= 1 << (index % 64);
        of_endpoint.flows += 1;
        *of_endpoint.sources.entry(source).or_default() += 1;
        flows[index] += 1;
        let is_alone = flows[index] == 1;
        Ok(Some(SourcePort { ports: Arc::clone(self), endpoint, source, index, is_alone }))
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Endpoint {
    fn new(ports: usize) -> Self {
        let mut is_taken: Box<[u64]> = vec![0; ports.div_ceil(64)].into();
        // There are no ports behind the last.
        if let Some(last) = is_taken.last_mut() {
            *last = (u64::MAX << ((ports - 1) % 64)) << 1;
        }
        Self { is_taken, flows: 0, sources: HashMap::new() }
    }

    /// Returns the index of a port that is free. It is not foreseen by others, who could answer in
    /// the place of the endpoint.
    fn free(&self) -> Option<usize> {
        let words = self.is_taken.len();
        let (start, bit) = (below(words as u64) as usize, below(64) as u32);
        let word = (0..words).map(|i| (start + i) % words).find(|i| self.is_taken[*i] != !0)?;
        let free = (!self.is_taken[word]).rotate_right(bit).trailing_zeros();
        Some(word * 64 + ((free + bit) % 64) as usize)
    }
}

impl SourcePort {
    /// Binds a socket that is to be connected to the endpoint. The port of another program is not
    /// shared: the first flow of a port binds it alone.
    pub(crate) fn bind(&self, socket: &Socket) -> io::Result<()> {
        let any: IpAddr = match self.endpoint {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        if any.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if !self.is_alone {
            socket.set_reuse_address(true)?;
        }
        socket.bind(&SocketAddr::new(any, self.ports.ports[self.index]).into())?;
        socket.set_reuse_address(true)
    }
}

impl Drop for SourcePort {
    fn drop(&mut self) {
        let mut taken = self.ports.lock();
        let Taken { endpoints, flows } = &mut *taken;
        flows[self.index] -= 1;
        let Some(of_endpoint) = endpoints.get_mut(&self.endpoint) else { return };
        of_endpoint.is_taken[self.index / 64] &= !(1 << (self.index % 64));
        of_endpoint.flows -= 1;
        count_down(&mut of_endpoint.sources, self.source);
        if of_endpoint.flows == 0 {
            endpoints.remove(&self.endpoint);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn client(i: u8) -> IpAddr {
        [192, 0, 2, i].into()
    }

    #[test]
    fn each_endpoint_has_all_ports_and_a_client_half_of_them() {
        let ports = SourcePorts::new((40_000..40_300).collect());
        let take = |endpoint: u8, i| ports.take(([10, 0, 0, endpoint], 53).into(), client(i));
        let mut held = Vec::new();
        for endpoint in [1, 2] {
            let before = held.len();
            let full = loop {
                match take(endpoint, 1) {
                    Ok(port) => held.extend(port),
                    Err(full) => break full,
                }
            };
            assert_eq!((held.len() - before, full), (100, LimitReached::Client));
            held.extend((2..=101).map(|i| take(endpoint, i).ok().flatten().unwrap()));
            assert_eq!(take(endpoint, 102).err(), Some(LimitReached::Endpoint));
            let distinct: HashSet<usize> = held[before..].iter().map(|port| port.index).collect();
            assert_eq!(distinct, (0..200).collect());
        }
        drop(held);
        let taken = ports.lock();
        assert!(taken.endpoints.is_empty() && taken.flows.iter().all(|flows| *flows == 0));
    }
}
