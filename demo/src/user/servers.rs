//! The servers: one for each pod, at a loopback address of this machine.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
};

use packet_rig::{EchoServer, Protocol, RigError};

use super::{LOOPBACK, rewrite::Ports};
use crate::{
    cast::Network,
    error::{DemoError, Result},
};

/// Attempts to find a port that is free at all addresses.
const ATTEMPTS: usize = 50;

/// The least and the greatest node port to try, beginning with that of `examples/`.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_080..=30_999;

/// Running servers with the names of their pods. Dropping the value ends them.
pub struct Servers {
    servers: Vec<(&'static str, EchoServer)>,
    ports: Ports,
}

impl Servers {
    /// Starts all servers at a port that is free.
    pub fn start() -> Result<Self> {
        let node = NODE_PORTS.into_iter().find(|port| is_free(*port));
        let node = node.ok_or_else(|| io::Error::other("none is free"));
        let node = node.map_err(DemoError::io("find a node port"))?;
        let has_v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let servers = free_port().map_err(DemoError::io("find a free port"))?;
            match serve(servers, has_v6) {
                Ok(running) => {
                    let ports = Ports { servers, node, has_v6 };
                    return Ok(Self { servers: running, ports });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or(DemoError::Stopped, DemoError::Rig))
    }

    /// The ports in use.
    pub fn ports(&self) -> Ports {
        self.ports
    }

    /// The server of a pod.
    pub fn of(&mut self, pod: &str) -> Result<&mut EchoServer> {
        let missing = || io::Error::other("there is none");
        let found = self.servers.iter_mut().find(|(name, _)| *name == pod);
        let found = found.ok_or_else(missing).map_err(DemoError::io(format!("find {pod}")))?;
        Ok(&mut found.1)
    }
}

fn serve(port: u16, has_v6: bool) -> Result<Vec<(&'static str, EchoServer)>, RigError> {
    let pods = LOOPBACK.pods.iter();
    let protocols = [Protocol::Tcp, Protocol::Udp];
    pods.filter(|pod| has_v6 || pod.network != Network::LoopbackV6)
        .map(|pod| {
            let address = (pod.ip(), port).into();
            Ok((pod.name, EchoServer::start_at(pod.name, address, &protocols)?))
        })
        .collect()
}

/// A port of this machine that is free at all addresses.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?.local_addr()?.port())
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}
