//! The table that the proxy writes: where each Service port can be reached.

use std::net::SocketAddr;

use packet_rig::Target;
use serde::Deserialize;

use super::cast::NODE_PORT;
use crate::cast::{Cast, Note};

/// A Service port in the table.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The address and port of the Service.
    pub cluster_ip: SocketAddr,
    /// The number of endpoints.
    pub endpoints: usize,
    /// The address and port where the proxy listens.
    pub address: SocketAddr,
    /// The address and port where the proxy listens for the node port.
    pub node_port: Option<SocketAddr>,
}

/// Reads the table.
pub fn read(text: &str) -> Option<Vec<Entry>> {
    serde_json::from_str(text).ok()
}

/// The targets of each Service of the cast; `None` if one is not in the table yet, or lacks endpoints that
/// it should have. Without `has_v6`, there
/// are none for IPv6.
pub fn targets(table: &[Entry], cast: &Cast, has_v6: bool) -> Option<Vec<Vec<Target>>> {
    let find = |address: &str| {
        let address: SocketAddr = address.parse().ok()?;
        table.iter().find(|entry| entry.cluster_ip == address)
    };
    let mut all = Vec::new();
    for role in cast.roles {
        let find = |address| {
            find(address).filter(|entry| entry.endpoints > 0 || role.note == Note::Refused)
        };
        let mut targets = Vec::new();
        for frontend in role.frontends {
            if frontend.target.starts_with('[') && !has_v6 {
                continue;
            }
            let address = match frontend.target {
                NODE_PORT => find(role.frontends[0].target)?.node_port?,
                address => find(address)?.address,
            };
            targets.push(Target { protocol: frontend.protocol, address });
        }
        all.push(targets);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::LOOPBACK;

    /// A table with an entry for each Service port of the cast.
    fn full() -> String {
        let services = LOOPBACK.roles.iter().flat_map(|role| role.frontends);
        let addresses = services.map(|one| one.target).filter(|target| *target != NODE_PORT);
        let entries = addresses.enumerate().map(|(index, address)| {
            let node =
                if address.contains(".30:") { r#""nodePort":"127.0.0.1:30081","# } else { "" };
            format!(
                r#"{{"clusterIp":"{address}",{node}"endpoints":2,"address":"127.0.0.1:{index}","port":"http"}}"#
            )
        });
        format!("[{}]", entries.collect::<Vec<_>>().join(","))
    }

    #[test]
    fn every_frontend_has_its_target() {
        let table = read(&full()).unwrap();
        let found = targets(&table, &LOOPBACK, true).unwrap();
        let ports: Vec<Vec<u16>> = found
            .iter()
            .map(|targets| targets.iter().map(|target| target.address.port()).collect())
            .collect();
        assert_eq!(ports, [vec![0], vec![1, 2], vec![3], vec![4, 30_081], vec![5], vec![6]]);
        let v4 = targets(&table, &LOOPBACK, false).unwrap();
        assert_eq!(v4[1].len(), 1);
    }

    #[test]
    fn a_table_that_lacks_a_service_is_not_complete() {
        let mut table = read(&full()).unwrap();
        table[0].endpoints = 0;
        assert!(targets(&table, &LOOPBACK, true).is_none(), "without endpoints");
        table[0].endpoints = 1;
        assert!(targets(&table, &LOOPBACK, true).is_some());
        table.pop();
        assert!(targets(&table, &LOOPBACK, true).is_none());
        assert!(read("[{").is_none(), "half of a table");
    }
}
