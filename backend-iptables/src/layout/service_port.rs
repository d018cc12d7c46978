//! The chains and rules of a Service port.
//!
//! A packet goes from a shared chain to `KUBE-SVC-` (endpoints of the `Cluster` policy) or
//! `KUBE-SVL-` (`Local`), directly from cluster IPs, else through `KUBE-EXT-`, and before that
//! through `KUBE-FW-` if there are source ranges. Only an endpoint on this node has a chain
//! `KUBE-SEP-`, which masquerades its own connections; others are translated where they are drawn.

use std::collections::{BTreeMap, BTreeSet};

use switchyard_core::{
    model::IpFamily,
    state::{
        Action, Endpoint, Frontend, FrontendAddress, Masquerade, NodePortAddresses, PoolKind,
        ResolvedServicePort,
    },
};
use switchyard_kernel::xtables::{Chain, Recent, RuleText, Table};

use super::{Context, SharedChain, names::PortNames};

/// The chains and rules of a Service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortRules {
    /// Chains of the Service port alone.
    pub(crate) chains: Vec<(Table, Chain)>,
    /// Rules in shared chains. Rules of the same chain stand in this order.
    pub(crate) shared: Vec<(SharedChain, String)>,
}

impl PortRules {
    /// Returns the chains and rules of `port`.
    pub(crate) fn new(port: &ResolvedServicePort, context: &Context<'_>) -> Self {
        let mut rendering = Rendering {
            port,
            context,
            names: PortNames::new(&port.id.name, context.settings.names),
            mark_masq: context.settings.names.mark_masq,
            rules: Self::default(),
            cluster: None,
            local: None,
            external: None,
            firewall: None,
            filter: None,
        };
        for frontend in &port.frontends {
            rendering.add_frontend(frontend);
        }
        rendering.finish()
    }
}

struct Rendering<'a> {
    port: &'a ResolvedServicePort,
    context: &'a Context<'a>,
    names: PortNames,
    /// The chain that has packets masqueraded.
    mark_masq: &'static str,
    rules: PortRules,
    /// The rules before the draw in `KUBE-SVC-`, if that chain is needed.
    cluster: Option<Vec<String>>,
    /// The rules before the draw in `KUBE-SVL-`, if that chain is needed.
    local: Option<Vec<String>>,
    external: Option<Chain>,
    firewall: Option<Chain>,
    /// The chain `KUBE-FW-` of the filter table.
    filter: Option<Chain>,
}

impl Rendering<'_> {
    fn add_frontend(&mut self, frontend: &Frontend) {
        match (frontend.action, frontend.at) {
            (Action::Pool { pool, masquerade }, FrontendAddress::ClusterIp(_)) => {
                let mark = self.mark_rule(frontend, masquerade);
                self.pool(pool).extend(mark);
                let to = self.pool_name(pool);
                self.dispatch(frontend, &to);
            }
            (
                action @ (Action::Pool { .. } | Action::ExternalLocal | Action::DeliveredLocal),
                _,
            ) => {
                self.add_external(action);
                let to = match &frontend.allowed_sources {
                    Some(sources) => self.add_firewall(sources),
                    None => self.names.external(),
                };
                let what = match action {
                    // Comes and goes with the rule that leaves the rest to IPVS, and so above it.
                    Action::DeliveredLocal => " for clients on the node",
                    _ => what(frontend.at),
                };
                self.dispatch_as(frontend, &to, what);
                if action == Action::ExternalLocal && self.port.local.is_empty() {
                    self.refuse(frontend, Refusal::Drop);
                }
                if action == Action::DeliveredLocal {
                    self.leave_to_ipvs(frontend);
                }
            }
            (Action::Delivered { masquerade }, _) => self.deliver(frontend, masquerade),
            // Who may not ask gets no answer.
            (Action::Reject, _) if frontend.allowed_sources.is_some() => {}
            (Action::Reject, _) => self.refuse(frontend, Refusal::Reject),
            (Action::Drop, _) => self.refuse(frontend, Refusal::Drop),
        }
        if let Some(sources) = &frontend.allowed_sources {
            self.deny(frontend, sources);
        }
        if self.context.settings.beneath_ipvs
            && matches!(frontend.at, FrontendAddress::ClusterIp(_))
        {
            self.refuse_other_ports(frontend);
        }
    }

    /// Has a frontend's clients masqueraded, and leaves the translation to IPVS.
    fn deliver(&mut self, frontend: &Frontend, masquerade: Masquerade) {
        let (shared, rule) = match (frontend.at.ip(), masquerade) {
            // The node's own connection to an address of the node comes from that address, which
            // every node has, so that no answer would come back.
            (Some(ip), Masquerade::Never) => {
                (SharedChain::NatServices, Some(RuleText::new().source(ip).destination(ip)))
            }
            (Some(ip), Masquerade::Always) => {
                (SharedChain::NatServices, Some(RuleText::new().destination(ip)))
            }
            (Some(ip), Masquerade::ExceptLocalPods) => {
                let pods = self.context.node.local_pods.get(self.context.family).as_ref();
                let rule = pods.map(|pods| RuleText::new().not_sent_by_local_pod_to(pods, ip));
                (SharedChain::NatServices, rule)
            }
            (None, Masquerade::Never) => (SharedChain::NatNodePorts, None),
            (None, _) => (SharedChain::NatNodePorts, Some(RuleText::new())),
        };
        let protocol = self.port.id.name.protocol;
        let rule = rule.map(|rule| rule.protocol(protocol).comment(&self.comment("")));
        let rule = rule.map(|rule| rule.port(protocol, frontend.port).jump(self.mark_masq));
        self.rules.shared.extend(rule.map(|rule| (shared, rule)));
        self.leave_to_ipvs(frontend);
    }

    /// Keeps other programs' rules for addresses of the node, such as those of host ports, from
    /// translating what IPVS delivers, and lets it pass among what is for the node.
    fn leave_to_ipvs(&mut self, frontend: &Frontend) {
        if frontend.at == FrontendAddress::NodePort {
            return;
        }
        let accept = self.at(RuleText::new(), frontend, " by IPVS").jump("ACCEPT");
        self.rules.shared.push((SharedChain::NatServices, accept));
        if matches!(frontend.at, FrontendAddress::ClusterIp(_)) {
            let pass = self.at(RuleText::new(), frontend, " by IPVS").jump("RETURN");
            self.rules.shared.push((SharedChain::FilterDelivered, pass));
        }
    }

    /// Refuses what is for no Service port at an address that is the node's for Services alone.
    fn refuse_other_ports(&mut self, frontend: &Frontend) {
        let Some(ip) = frontend.at.ip() else { return };
        let rule = RuleText::new().destination(ip).comment(&self.comment(" and no other port"));
        let rule = rule.jump(self.context.reject());
        self.rules.shared.push((SharedChain::FilterOtherPorts, rule));
    }

    /// Returns the rules before the draw of a pool's chain, and marks the chain as needed.
    fn pool(&mut self, kind: PoolKind) -> &mut Vec<String> {
        match kind {
            PoolKind::Cluster => self.cluster.get_or_insert_default(),
            PoolKind::Local => self.local.get_or_insert_default(),
        }
    }

    fn pool_name(&self, kind: PoolKind) -> String {
        match kind {
            PoolKind::Cluster => self.names.cluster(),
            PoolKind::Local => self.names.local(),
        }
    }

    /// Returns the rule that has connections to a cluster IP masqueraded.
    fn mark_rule(&self, frontend: &Frontend, masquerade: Masquerade) -> Option<String> {
        let ip = frontend.at.ip()?;
        let rule = match masquerade {
            Masquerade::Never => return None,
            Masquerade::Always => RuleText::new().destination(ip),
            Masquerade::ExceptLocalPods => {
                let pods = self.context.node.local_pods.get(self.context.family).as_ref()?;
                RuleText::new().not_sent_by_local_pod_to(pods, ip)
            }
        };
        let protocol = self.port.id.name.protocol;
        Some(rule.protocol(protocol).port(protocol, frontend.port).jump(self.mark_masq))
    }

    /// Leads a frontend to a chain of the Service port.
    fn dispatch(&mut self, frontend: &Frontend, to: &str) {
        self.dispatch_as(frontend, to, what(frontend.at));
    }

    fn dispatch_as(&mut self, frontend: &Frontend, to: &str, what: &str) {
        let shared = match frontend.at {
            FrontendAddress::NodePort => SharedChain::NatNodePorts,
            _ => SharedChain::NatServices,
        };
        let rule = self.at(RuleText::new(), frontend, what).jump(to);
        self.rules.shared.push((shared, rule));
    }

    /// Matches packets to a frontend's address (node ports: to any) and port.
    fn at(&self, rule: RuleText, frontend: &Frontend, what: &str) -> RuleText {
        let protocol = self.port.id.name.protocol;
        let rule = match frontend.at.ip() {
            Some(ip) => rule.destination(ip),
            None => rule,
        };
        rule.protocol(protocol).comment(&self.comment(what)).port(protocol, frontend.port)
    }

    /// Returns the comment of a rule.
    fn comment(&self, what: &str) -> String {
        format!("{}{what}", self.port.id.name)
    }

    /// Adds the chain that takes traffic from outside the cluster, the same for all frontends.
    fn add_external(&mut self, action: Action) {
        if self.external.is_some() {
            return;
        }
        let name = &self.port.id.name;
        let cluster = self.names.cluster();
        let mut rules = Vec::new();
        match action {
            Action::Pool { pool, masquerade } => {
                self.pool(pool);
                if masquerade != Masquerade::Never {
                    let comment = format!("masquerade traffic for {name} external destinations");
                    rules.push(RuleText::new().comment(&comment).jump(self.mark_masq));
                }
                rules.push(RuleText::new().jump(&self.pool_name(pool)));
            }
            Action::ExternalLocal | Action::DeliveredLocal => {
                self.pool(PoolKind::Cluster);
                if let Some(pods) = self.context.node.local_pods.get(self.context.family) {
                    let comment = format!("pod traffic for {name} external destinations");
                    rules.push(
                        RuleText::new().sent_by_local_pod(pods).comment(&comment).jump(&cluster),
                    );
                }
                let comment =
                    |does| format!("{does} LOCAL traffic for {name} external destinations");
                let from_node = |does, to: &str| {
                    RuleText::new().comment(&comment(does)).sent_by_node().jump(to)
                };
                rules.push(from_node("masquerade", self.mark_masq));
                rules.push(from_node("route", &cluster));
                if action == Action::ExternalLocal && !self.port.local.is_empty() {
                    self.pool(PoolKind::Local);
                    rules.push(RuleText::new().jump(&self.names.local()));
                }
            }
            Action::Delivered { .. } | Action::Reject | Action::Drop => {}
        }
        self.external = Some(Chain { name: self.names.external(), rules });
    }

    /// Adds the chain that leads allowed sources on and lets the rest fall through. Returns the
    /// name of the chain.
    fn add_firewall(&mut self, sources: &[ipnet::IpNet]) -> String {
        let (name, to) = (self.names.firewall(), self.names.external());
        let rules = || sources.iter().map(|net| RuleText::new().source(*net).jump(&to)).collect();
        self.firewall.get_or_insert_with(|| Chain { name: name.clone(), rules: rules() });
        name
    }

    /// Drops packets of sources that are not allowed in the filter table. Without IPVS, packets of
    /// all others have another destination there, if there are endpoints.
    fn deny(&mut self, frontend: &Frontend, sources: &[ipnet::IpNet]) {
        let name = self.names.firewall();
        let by_ipvs = matches!(frontend.action, Action::Delivered { .. } | Action::DeliveredLocal);
        let is_refused = frontend.action == Action::Reject;
        let has_filter = by_ipvs || is_refused;
        let not_accepted = format!(" traffic not accepted by {name}");
        let (what, to) = match has_filter {
            true => (" source ranges", &*name),
            false => (&*not_accepted, "DROP"),
        };
        let (port, protocol) = (frontend.port, self.port.id.name.protocol);
        let rule = match frontend.at.ip().filter(|_| by_ipvs) {
            None => self.at(RuleText::new(), frontend, what),
            // IPVS has translated the node's own packets.
            Some(ip) => RuleText::new()
                .protocol(protocol)
                .comment(&self.comment(what))
                .matching(&format!("-m conntrack --ctorigdst {ip} --ctorigdstport {port}")),
        };
        let shared = SharedChain::FilterFirewall;
        self.rules.shared.push((shared, rule.jump(to)));
        if is_refused {
            let rule = self.at(RuleText::new(), frontend, " has no endpoints");
            self.rules.shared.push((shared, rule.jump(self.context.reject())));
        }
        if has_filter {
            let allowed = sources.iter().map(|net| RuleText::new().source(*net).jump("RETURN"));
            let rules = || allowed.chain([RuleText::new().jump("DROP")]).collect();
            self.filter.get_or_insert_with(|| Chain { name, rules: rules() });
        }
    }

    /// Refuses packets to a frontend that are not translated.
    fn refuse(&mut self, frontend: &Frontend, refusal: Refusal) {
        let (what, target) = match refusal {
            Refusal::Drop => (" has no local endpoints", "DROP"),
            Refusal::Reject => (" has no endpoints", self.context.reject()),
        };
        let rules: Vec<RuleText> = match frontend.at {
            FrontendAddress::NodePort => self.at_node_port(frontend, what),
            _ => vec![self.at(RuleText::new(), frontend, what)],
        };
        for rule in rules {
            let rule = rule.jump(target);
            // Cluster IPs are on no interface. External addresses may be on one of the node's, and
            // the node itself may connect to them, which only the other chain sees.
            if !matches!(frontend.at, FrontendAddress::ClusterIp(_)) {
                self.rules.shared.push((SharedChain::FilterExternal, rule.clone()));
            }
            if frontend.at != FrontendAddress::NodePort {
                self.rules.shared.push((SharedChain::FilterServices, rule));
            }
        }
    }

    fn at_node_port(&self, frontend: &Frontend, what: &str) -> Vec<RuleText> {
        let protocol = self.port.id.name.protocol;
        let comment = self.comment(what);
        match self.context.node.node_ports.get(self.context.family) {
            all @ (NodePortAddresses::AllLocal | NodePortAddresses::AllWithLoopback) => {
                let rule = match all.has_loopback() {
                    true => RuleText::new(),
                    false => RuleText::new().destination_not(self.context.loopback()),
                };
                let rule = rule.protocol(protocol).comment(&comment).at_node();
                vec![rule.port(protocol, frontend.port)]
            }
            NodePortAddresses::Only(ips) => ips
                .iter()
                .filter(|ip| IpFamily::of(ip) == self.context.family)
                .map(|ip| {
                    let rule = RuleText::new().destination(*ip).protocol(protocol);
                    rule.comment(&comment).port(protocol, frontend.port)
                })
                .collect(),
        }
    }

    fn finish(mut self) -> PortRules {
        let (mut chains, mut endpoints) = (Vec::new(), BTreeMap::new());
        for kind in [PoolKind::Cluster, PoolKind::Local] {
            let before = match kind {
                PoolKind::Cluster => self.cluster.take(),
                PoolKind::Local => self.local.take(),
            };
            let Some(mut rules) = before else { continue };
            let pool = self.port.pool(kind);
            rules.extend(self.returning(pool));
            rules.extend(self.draw(pool));
            chains.push(Chain { name: self.pool_name(kind), rules });
            for endpoint in pool.iter().filter(|endpoint| endpoint.may_be_local) {
                endpoints.entry(endpoint.address).or_insert_with(|| self.endpoint_chain(endpoint));
            }
        }
        if self.context.settings.beneath_ipvs {
            self.add_hairpins();
        }
        chains.extend(self.external.take());
        chains.extend(self.firewall.take());
        chains.extend(endpoints.into_values());
        let chains = chains.into_iter().map(|chain| (Table::Nat, chain));
        self.rules.chains = chains.chain(self.filter.take().map(|c| (Table::Filter, c))).collect();
        self.rules
    }

    /// Has connections of endpoints to themselves masqueraded that IPVS has translated.
    fn add_hairpins(&mut self) {
        let protocol = self.port.id.name.protocol;
        let pools = [&self.port.cluster, &self.port.local, &self.port.draining].into_iter();
        let all = pools.flat_map(|pool| pool.iter());
        let here = all.filter(|endpoint| endpoint.may_be_local).map(|endpoint| endpoint.address);
        for address in here.collect::<BTreeSet<_>>() {
            let itself = RuleText::new().source(address.ip()).destination(address.ip());
            let rule = itself.protocol(protocol).comment(&self.comment(" to itself"));
            let rule = rule.port(protocol, address.port()).jump("MASQUERADE");
            self.rules.shared.push((SharedChain::NatHairpins, rule));
        }
    }

    /// Returns the rules that lead clients back to the endpoint that remembers them.
    fn returning(&self, pool: &[Endpoint]) -> Vec<String> {
        let Some(timeout) = self.port.affinity else { return Vec::new() };
        let (family, protocol) = (self.context.family, self.port.id.name.protocol);
        let back_to = |endpoint: &Endpoint| {
            let list = self.names.endpoint(endpoint.address);
            match endpoint.may_be_local {
                true => RuleText::new().recent(family, &list, Recent::Check(timeout)).jump(&list),
                false => RuleText::new()
                    .protocol(protocol)
                    .recent(family, &list, Recent::CheckAndRemember(timeout))
                    .translate(endpoint.address),
            }
        };
        pool.iter().map(back_to).collect()
    }

    /// Returns the rules that draw one of the endpoints. Each rule takes the share of the packets
    /// that the weight of its endpoint is of the weights of its endpoint and all that follow; the
    /// last takes the rest. So of N equal endpoints the first rule takes one packet in N, the
    /// second one in N - 1 of the rest, and so on.
    fn draw(&self, pool: &[Endpoint]) -> Vec<String> {
        let (family, protocol) = (self.context.family, self.port.id.name.protocol);
        let mut left: u64 = pool.iter().map(|endpoint| u64::from(endpoint.weight)).sum();
        let draw = |(i, endpoint): (usize, &Endpoint)| {
            let weight = u64::from(endpoint.weight);
            let share = |rule: RuleText| match i + 1 == pool.len() {
                true => rule,
                false => rule.share(weight, left),
            };
            let list = || self.names.endpoint(endpoint.address);
            let rule = match (endpoint.may_be_local, self.port.affinity) {
                (true, _) => share(RuleText::new()).jump(&list()),
                (false, None) => {
                    share(RuleText::new().protocol(protocol)).translate(endpoint.address)
                }
                (false, Some(_)) => share(RuleText::new().protocol(protocol))
                    .recent(family, &list(), Recent::Remember)
                    .translate(endpoint.address),
            };
            left -= weight;
            rule
        };
        pool.iter().enumerate().map(draw).collect()
    }

    /// Returns the chain that translates to an endpoint on this node.
    fn endpoint_chain(&self, endpoint: &Endpoint) -> Chain {
        let name = self.names.endpoint(endpoint.address);
        let hairpin = RuleText::new().source(endpoint.address.ip()).jump(self.mark_masq);
        let rule = RuleText::new().protocol(self.port.id.name.protocol);
        let rule = match self.port.affinity {
            Some(_) => rule.recent(self.context.family, &name, Recent::Remember),
            None => rule,
        };
        Chain { rules: vec![hairpin, rule.translate(endpoint.address)], name }
    }
}

/// The end of the comment of a rule that leads a frontend to a chain.
fn what(at: FrontendAddress) -> &'static str {
    match at {
        FrontendAddress::ClusterIp(_) => " cluster IP",
        FrontendAddress::LoadBalancerIp(_) => " loadbalancer IP",
        FrontendAddress::ExternalIp(_) => " external IP",
        FrontendAddress::NodePort => "",
    }
}

/// The verdict for traffic that no endpoint may serve.
#[derive(Clone, Copy)]
enum Refusal {
    Reject,
    Drop,
}
