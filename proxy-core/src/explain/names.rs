//! Names of endpoints, which are not kept in memory.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use super::explanation::Explanation;

/// The names that an EndpointSlice has of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointNames {
    /// The pod, which is in the Service's namespace; `None` if the endpoint is no pod.
    pub pod: Option<String>,
    /// The node.
    pub node: Option<String>,
    /// The zone.
    pub zone: Option<String>,
    /// The EndpointSlice.
    pub slice: Option<Arc<str>>,
    /// The time since the change that the slice reflects, in seconds; `None` if it does not say.
    pub slice_seconds: Option<u64>,
}

impl Explanation {
    /// Shows the names of endpoints, by address; with port 0 those of an endpoint whose slice lacks
    /// the port.
    pub fn set_names(&mut self, names: &HashMap<SocketAddr, EndpointNames>) {
        for line in &mut self.endpoints {
            let Some(names) = names.get(&line.address).cloned() else { continue };
            (line.pod, line.node_name, line.zone) = (names.pod, names.node, names.zone);
            (line.slice, line.slice_seconds) = (names.slice, names.slice_seconds);
        }
    }
}
