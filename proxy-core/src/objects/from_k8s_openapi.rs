//! Conversions from the types of the crate `k8s-openapi` (feature `k8s-openapi`), for programs
//! whose informers hold those already.
//!
//! A conversion is the decoding of the object's JSON. The version of the Kubernetes API is the
//! choice of the program that is built: this crate enables none of `k8s-openapi`'s features.

use k8s_openapi::api::{
    core::v1 as core, discovery::v1 as discovery, networking::v1 as networking,
};

use super::{EndpointSlice, Node, Object, Service, ServiceCidr};

macro_rules! conversions {
    ($($theirs:ty => $ours:ident),*) => {
        $(impl From<$theirs> for $ours {
            fn from(mut object: $theirs) -> Self {
                // Large, and read by nothing; and a change that is none to a proxy.
                object.metadata.managed_fields = None;
                object.metadata.resource_version = None;
                // What these types hold is decoded without errors.
                let decoded = serde_json::to_value(object).and_then(serde_json::from_value);
                decoded.unwrap_or_default()
            }
        }

        impl From<$theirs> for Object {
            fn from(object: $theirs) -> Self {
                Self::$ours(object.into())
            }
        })*
    };
}
conversions!(
    core::Service => Service,
    discovery::EndpointSlice => EndpointSlice,
    core::Node => Node,
    networking::ServiceCIDR => ServiceCidr
);
