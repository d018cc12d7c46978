//! The problems of a Service that show when the Service is resolved: addresses that other Services
//! have, and more endpoints than a Service may ask for.

use std::collections::BTreeMap;

use crate::{
    explain::LostFrontend,
    model::IpFamily,
    objects::ObjectKey,
    parsed::problem::{Problem, Problems, Reason},
    state::FrontendAddress,
};

/// The most products of a Service's ports and endpoints in a family (and addresses, if each has
/// endpoints of its own): as many as 2,000 Services of 250 endpoints have, which take some seconds
/// and 150 MiB. Two objects can ask for 20 million.
pub(super) const MAX_DESTINATIONS: usize = 500_000;

/// The most endpoints that are looked at for the ports of a Service in a family, which takes a
/// second. Ports that the same slices have count once. Sixteen objects can ask for 150 million.
pub(super) const MAX_LOOKS: usize = 10 * MAX_DESTINATIONS;

/// The endpoints of a Service in a family that are left out.
pub(super) struct Limited {
    pub(super) family: IpFamily,
    /// The number of endpoints of a port that are not left out, if some port has more.
    pub(super) most: Option<usize>,
    /// The number of ports whose endpoints are all left out.
    pub(super) ports: usize,
}

/// Returns a problem for each field of the Service that names what another Service has, and for
/// each other Service: a Service may name thousands of addresses.
pub(super) fn conflicts(service: &ObjectKey, lost: &[LostFrontend]) -> Vec<Problem> {
    let mut by_winner = BTreeMap::<_, (&LostFrontend, usize)>::new();
    for frontend in lost {
        let place = (field_of(frontend.at), &frontend.to.name.service);
        by_winner.entry(place).or_insert((frontend, 0)).1 += 1;
    }
    let mut problems = Problems::with(service.clone(), Reason::Conflict);
    for ((field, winner), (LostFrontend { at, port, to }, count)) in by_winner {
        let at = at.ip().map_or("node".to_owned(), |ip| ip.to_string());
        let protocol = to.name.protocol;
        problems.add(
            field,
            match count - 1 {
                0 => format!(
                    "{at} port {port} ({protocol}) belongs to Service {winner}; it is not served for \
                     this one"
                ),
                more => format!(
                    "{at} port {port} ({protocol}) and {more} more belong to Service {winner}; they \
                     are not served for this one"
                ),
            },
        );
    }
    problems.into_vec()
}

/// Returns the problems of endpoints that are left out. `each_address` is whether each address of
/// the Service has endpoints of its own.
pub(super) fn limits(service: &ObjectKey, limited: &[Limited], each_address: bool) -> Vec<Problem> {
    let mut problems = Problems::new(service.clone());
    let addresses = if each_address { " and addresses" } else { "" };
    for Limited { family, most, ports } in limited {
        if let Some(most) = most {
            problems.add(
                "spec.ports",
                format_args!(
                    "the {family} endpoints after the first {most} of a port are left out: with all \
                     ports{addresses}, there would be more than {MAX_DESTINATIONS} destinations"
                ),
            );
        }
        if *ports > 0 {
            problems.add(
                "spec.ports",
                format_args!(
                    "the {family} endpoints of {ports} of the ports are left out: ports are in \
                     different slices, with more than {MAX_LOOKS} endpoints in all"
                ),
            );
        }
    }
    problems.into_vec()
}

fn field_of(at: FrontendAddress) -> &'static str {
    match at {
        FrontendAddress::ClusterIp(_) => "spec.clusterIPs",
        FrontendAddress::LoadBalancerIp(_) => "status.loadBalancer.ingress",
        FrontendAddress::ExternalIp(_) => "spec.externalIPs",
        FrontendAddress::NodePort => "spec.ports",
    }
}
