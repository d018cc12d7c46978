//! From the policies of Services to what this node should program.
//!
//! Two questions, a file each: which endpoints may serve a Service port from this node
//! ([`pools`]), and what happens to traffic at each of its frontends ([`frontends`]).

pub(crate) mod frontends;
pub(crate) mod pools;

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use self::pools::Pools;
use crate::{
    model::{IpFamily, PerFamily, ServicePortId, ServicePortName, Spread},
    parsed::{
        service::{Addresses, Service, ServicePort},
        slice::Slice,
    },
    state::{Frontend, HealthCheck, Pool, PoolKind, ResolvedServicePort, Route},
};

/// What decisions about a Service depend on besides the Service and its endpoints, in one family.
#[derive(Debug, PartialEq)]
pub(crate) struct Surroundings {
    /// This node's zone.
    pub(crate) zone: Option<String>,
    /// This node's address in the family.
    pub(crate) node_ip: Option<IpAddr>,
    /// Whether pods of this node can be distinguished from other clients in the family.
    pub(crate) knows_local_pods: bool,
    /// Whether all traffic to cluster IPs is masqueraded.
    pub(crate) masquerade_all: bool,
    /// Whether external IPs are programmed.
    pub(crate) external_ips: bool,
}

/// The identity of a Service port in a family.
pub(crate) fn id(service: &Service, port: &ServicePort, family: IpFamily) -> ServicePortId {
    ServicePortId {
        name: ServicePortName {
            service: service.name.clone(),
            port: port.name.clone(),
            protocol: port.protocol,
        },
        family,
    }
}

/// Resolves one port of a Service in one family. `owns` returns whether a frontend belongs to this port,
/// and not to another Service port with a better claim.
pub(crate) fn resolve<'s>(
    id: &ServicePortId,
    service: &Service,
    port: &ServicePort,
    addresses: &Addresses,
    slices: impl Iterator<Item = &'s Slice> + Clone,
    around: &Surroundings,
    owns: impl Fn(&Frontend) -> bool,
) -> ResolvedServicePort {
    let external = service.is_externally_accessible(port, addresses, around.external_ips);
    let pools = Pools::choose(
        id,
        slices,
        around.zone.as_deref(),
        !service.internal_local || external,
        service.internal_local || (service.external_local && external),
    );
    let mut frontends = frontends::frontends(service, port, addresses, &pools, around);
    frontends.retain(owns);
    frontends.sort_unstable();
    // A pool whose frontends all went to another Service port, or that no route names, would only
    // cost the backend work.
    let uses = |kind: PoolKind| {
        frontends.iter().any(|frontend| match frontend.route {
            Route::Pool { pool, .. } => pool == kind,
            Route::ExternalLocal => true,
            Route::Reject | Route::Drop => false,
        })
    };
    let kept = |kind: PoolKind, pool: &Pool| {
        if uses(kind) { Arc::clone(pool) } else { Pool::default() }
    };
    let cluster = kept(PoolKind::Cluster, &pools.cluster);
    let local = kept(PoolKind::Local, &pools.local);
    ResolvedServicePort {
        draining: pools.draining(&cluster, &local),
        cluster,
        local,
        affinity: service.affinity,
        spread: Spread::Random,
        frontends,
        id: id.clone(),
    }
}

/// Returns the health check of a Service for load balancers, if the Service has one.
pub(crate) fn health_check<'s>(
    service: &Service,
    slices: impl Iterator<Item = &'s Slice> + Clone,
) -> Option<HealthCheck> {
    let port = service.health_check?;
    let count = |family| {
        let mut ready = BTreeSet::new();
        for port in &service.ports {
            ready.extend(pools::local_ready(&id(service, port, family), slices.clone()));
        }
        ready.len()
    };
    let local_endpoints =
        PerFamily::from_fn(|family| service.addresses.get(family).is_some().then(|| count(family)));
    Some(HealthCheck { port, local_endpoints })
}
