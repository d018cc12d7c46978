//! The resources that are served.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// `v1` nodes
    Nodes,
    /// `v1` services
    Services,
    /// `discovery.k8s.io/v1` endpointslices
    EndpointSlices,
    /// `networking.k8s.io/v1` servicecidrs
    ServiceCidrs,
}

impl Resource {
    pub const ALL: [Self; 4] =
        [Self::Nodes, Self::Services, Self::EndpointSlices, Self::ServiceCidrs];

    /// The name in paths, e.g. `endpointslices`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Services => "services",
            Self::EndpointSlices => "endpointslices",
            Self::ServiceCidrs => "servicecidrs",
        }
    }

    pub fn kind(self) -> &'static str {
        match self {
            Self::Nodes => "Node",
            Self::Services => "Service",
            Self::EndpointSlices => "EndpointSlice",
            Self::ServiceCidrs => "ServiceCIDR",
        }
    }

    pub fn api_version(self) -> &'static str {
        match self {
            Self::Nodes | Self::Services => "v1",
            Self::EndpointSlices => "discovery.k8s.io/v1",
            Self::ServiceCidrs => "networking.k8s.io/v1",
        }
    }

    /// The API group; empty for the core.
    pub fn group(self) -> &'static str {
        self.api_version().split_once('/').map_or("", |(group, _)| group)
    }

    /// Whether objects live in a namespace.
    pub fn is_namespaced(self) -> bool {
        matches!(self, Self::Services | Self::EndpointSlices)
    }

    /// The path below which the resource is, e.g. `/apis/discovery.k8s.io/v1`.
    pub fn base_path(self) -> String {
        match self.group() {
            "" => "/api/v1".to_owned(),
            _ => format!("/apis/{}", self.api_version()),
        }
    }

    /// The resource of an object.
    pub(crate) fn of(api_version: &str, kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|r| r.kind() == kind && r.api_version() == api_version)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
