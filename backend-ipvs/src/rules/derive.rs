//! Service ports as the rules beneath should know them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use switchyard_core::{
    model::LbAlgorithm,
    state::{Action, Endpoint, Frontend, FrontendAddress, ResolvedServicePort},
};

/// Returns a Service port for the rules. If IPVS delivers it, these need its endpoints only for
/// clients on the node that have another pool, which no virtual server has, and to know connections
/// of endpoints to themselves: also of those that drain, and of those that are `leaving`, which
/// virtual servers may still have. If not, the rules translate, and forget no client that they have
/// not remembered.
pub(super) fn derive(
    port: &ResolvedServicePort,
    leaving: impl Iterator<Item = SocketAddr>,
    is_delivered: bool,
    elsewhere: &BTreeSet<IpAddr>,
) -> ResolvedServicePort {
    let action = |action| match action {
        Action::Pool { masquerade, .. } if is_delivered => Action::Delivered { masquerade },
        Action::ExternalLocal if is_delivered && !port.local.is_empty() => Action::DeliveredLocal,
        other => other,
    };
    let at = |at| match at {
        // Other ports are refused where the address is the node's for Services alone.
        FrontendAddress::LoadBalancerIp(ip) | FrontendAddress::ExternalIp(ip)
            if is_delivered && !elsewhere.contains(&ip) =>
        {
            FrontendAddress::ClusterIp(ip)
        }
        other => other,
    };
    let frontend = |frontend: &Frontend| Frontend {
        at: at(frontend.at),
        action: action(frontend.action),
        ..frontend.clone()
    };
    let leads_elsewhere = port.frontends.iter().any(|f| f.action == Action::ExternalLocal);
    let (cluster, local) = match (is_delivered, leads_elsewhere) {
        (false, _) => (port.cluster.clone(), port.local.clone()),
        (true, true) => (port.cluster.clone(), here(&port.local).collect()),
        (true, false) => (here(&port.cluster).collect(), here(&port.local).collect()),
    };
    let leaving =
        leaving.map(|address| Endpoint { address, is_local: false, may_be_local: true, weight: 1 });
    let known = [&port.cluster, &port.local, &port.draining];
    let known = leaving.chain(known.into_iter().flat_map(|pool| here(pool)));
    let mut draining: BTreeMap<_, _> = known.map(|endpoint| (endpoint.address, endpoint)).collect();
    for endpoint in cluster.iter().chain(local.iter()) {
        draining.remove(&endpoint.address);
    }
    ResolvedServicePort {
        frontends: port.frontends.iter().map(frontend).collect(),
        cluster,
        local,
        draining: draining.into_values().collect(),
        affinity: port.affinity.filter(|_| is_delivered && leads_elsewhere),
        lb_algorithm: LbAlgorithm::Random,
        proxy_protocol: None,
        id: port.id.clone(),
    }
}

/// The endpoints that may be on this node.
pub(super) fn here(pool: &[Endpoint]) -> impl Iterator<Item = Endpoint> {
    let here = pool.iter().filter(|endpoint| endpoint.may_be_local);
    here.map(|endpoint| Endpoint { weight: 1, ..*endpoint })
}

#[cfg(test)]
mod tests {
    use std::{iter, sync::Arc};

    use switchyard_core::{
        config::{LocalPodsConfig, NodeConfig},
        model::IpFamily,
        state::State,
        testing::{NODE, endpoint, node, service, slice},
        track::Tracker,
    };
    use switchyard_iptables::IptablesConfig;
    use switchyard_nft::NftConfig;

    use super::*;

    /// A Service of each kind with an endpoint on this node and one elsewhere, as the rules should
    /// know them.
    fn state(is_delivered: bool) -> State {
        let mut config = NodeConfig::new(NODE);
        config.local_pods = LocalPodsConfig::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]);
        let mut tracker = Tracker::new(config);
        tracker.set_capabilities(
            crate::scheduler::capabilities(crate::Scheduler::RoundRobin),
            switchyard_core::proxier::Mode::IPVS,
        );
        let endpoints = |name| {
            let slice = slice(name, "a").port("http", "TCP", 8080);
            slice.endpoint(endpoint("10.244.0.5", NODE)).endpoint(endpoint("10.244.1.6", "b"))
        };
        let balanced = |name, ip, ingress| {
            let service = service(name, ip).set("spec.type", "LoadBalancer").ingress(ingress);
            service.port("http", "TCP", 80).set("spec.sessionAffinity", "ClientIP")
        };
        let limited = balanced("limited", "10.96.0.1", "192.0.2.1");
        let limited =
            limited.set("spec.loadBalancerSourceRanges", serde_json::json!(["203.0.113.0/24"]));
        let local = balanced("local", "10.96.0.2", "192.0.2.2");
        let local = local
            .set("spec.externalTrafficPolicy", "Local")
            .set("spec.healthCheckNodePort", 30_000);
        let idle = service("idle", "10.96.0.3").port("http", "TCP", 80);
        let events = [
            node(NODE, "192.168.0.1").apply(),
            limited.apply(),
            endpoints("limited").apply(),
            local.apply(),
            endpoints("local").apply(),
            idle.apply(),
        ];
        for event in events {
            assert_eq!(tracker.apply(event), []);
        }
        tracker.resolve();
        let mut state = tracker.state().clone();
        // The address of one load balancer is the node's.
        let elsewhere = [IpAddr::from([192, 0, 2, 2])].into();
        for port in state.service_ports.values_mut() {
            *port = Arc::new(derive(port, iter::empty(), is_delivered, &elsewhere));
        }
        state
    }

    #[test]
    fn iptables_does_all_but_translate() {
        let mut config = IptablesConfig::default();
        config.beneath_ipvs = true;
        let rules = switchyard_iptables::render(&config, &state(true), IpFamily::V4);
        let has = |part: &str| assert!(rules.contains(part), "{part} is not in\n{rules}");
        has(
            "-A KUBE-SERVICES ! -s 10.244.0.0/16 -d 10.96.0.1/32 -p tcp -m comment --comment \"ns/limited:http\" -m tcp --dport 80 -j KUBE-MARK-MASQ",
        );
        has(
            "-A KUBE-SERVICES -d 192.0.2.1/32 -p tcp -m comment --comment \"ns/limited:http\" -m tcp --dport 80 -j KUBE-MARK-MASQ",
        );
        has(
            "-A KUBE-SERVICES -d 192.0.2.1/32 -p tcp -m comment --comment \"ns/limited:http by IPVS\" -m tcp --dport 80 -j ACCEPT",
        );
        has(
            "-A KUBE-IPVS-FILTER -d 192.0.2.1/32 -p tcp -m comment --comment \"ns/limited:http by IPVS\" -m tcp --dport 80 -j RETURN",
        );
        has("-A KUBE-IPVS-FILTER -j KUBE-IPVS-OTHERS");
        has(
            "-A KUBE-IPVS-OTHERS -d 192.0.2.1/32 -m comment --comment \"ns/limited:http and no other port\" -j REJECT",
        );
        has(
            "-A KUBE-PROXY-FIREWALL -p tcp -m comment --comment \"ns/limited:http source ranges\" -m conntrack --ctorigdst 192.0.2.1 --ctorigdstport 80 -j KUBE-FW-",
        );
        has("-A KUBE-IPVS-HAIRPINS -s 10.244.0.5/32 -d 10.244.0.5/32 -p tcp");
        has(
            "-A KUBE-SERVICES -d 10.96.0.3/32 -p tcp -m comment --comment \"ns/idle:http has no endpoints\" -m tcp --dport 80 -j REJECT",
        );
        // An address of the node serves others, too.
        assert!(!rules.contains("-A KUBE-IPVS-OTHERS -d 192.0.2.2/32"), "{rules}");
        // Only clients on the node have another pool than IPVS: one rule for each endpoint, and one
        // for a client that returns.
        let translations = |rules: &str| rules.matches("-j DNAT").count();
        assert_eq!(translations(&rules), 3, "{rules}");
        let rules = switchyard_iptables::render(&config, &state(false), IpFamily::V4);
        assert!(translations(&rules) > 3, "{rules}");
    }

    #[test]
    fn nftables_does_all_but_translate() {
        let mut config = NftConfig::default();
        config.beneath_ipvs = true;
        let rules = format!("{:?}", switchyard_nft::render(&config, &state(true)).operations());
        for chain in ["delivered/masquerade-nonlocal", "delivered/masquerade", "other-ports"] {
            assert!(rules.contains(chain), "{chain} is not in\n{rules}");
        }
        let translating =
            format!("{:?}", switchyard_nft::render(&config, &state(false)).operations());
        for chain in ["masquerade-lb/2", "masquerade-nonlocal-lb/2"] {
            assert!(!rules.contains(chain) && translating.contains(chain), "{chain}: {rules}");
        }
    }
}
