//! The backend as the kit sees it, with either kind of rules.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    ops::Range,
    sync::{Arc, Mutex},
};

use switchyard_core::{
    model::{IpFamily, PerFamily},
    testing::conformance::{Damage, Refusals, RefusedPart, Subject},
};
use switchyard_iptables::{IptablesConfig, IptablesProxier};
use switchyard_kernel::{
    ipvs::{Batch, Ipvs, RealServer, Selector, VirtualServer},
    nftables::{
        TransportError, TransportKind,
        testing::{InterceptingTransport, spoil},
    },
};
use switchyard_nft::{NftConfig, NftProxier};
use test_netns::{RefusableIptables, iptables_lines, nft_lines, run, try_run};

use crate::{
    DEVICE, IpvsConfig, Scheduler, probe,
    proxier::{IpvsProxier, kernel::NodeKernel},
    rules::Rules,
};

const OTHER_DEVICE: &str = "theirs";
/// Has the kernel take the address of an endpoint of the kit's for a broadcast address.
const SUBNET: &str = "10.250.0.1/32 broadcast 10.244.0.20";

/// The objects beside the virtual servers.
enum Packets {
    /// A table, whose transactions can be refused.
    Nft(Refusals),
    /// Programs of iptables, which can be made to fail.
    Iptables(RefusableIptables),
}

/// The backend, in namespaces whose kernel can be made to refuse.
pub(super) struct IpvsSubject {
    packets: Packets,
    /// The family whose table is refused.
    family: Arc<Mutex<Option<IpFamily>>>,
    /// The virtual servers that were seen with real servers that drain: some stay for these alone.
    drained: Mutex<BTreeSet<String>>,
}

impl IpvsSubject {
    /// The backend without iptables; none on a kernel without IPVS.
    pub(super) fn nft() -> Option<Self> {
        Self::new(Packets::Nft(Refusals::default()))
    }

    /// The backend with iptables; none on a kernel without IPVS.
    pub(super) fn iptables() -> Option<Self> {
        Self::new(Packets::Iptables(RefusableIptables::new("nft")))
    }

    fn new(packets: Packets) -> Option<Self> {
        let made = Self { packets, family: Arc::default(), drained: Mutex::default() };
        probe::is_loaded().then_some(made)
    }

    fn rules_beneath(&self) -> Rules {
        match &self.packets {
            Packets::Iptables(programs) => {
                let mut config = IptablesConfig::default();
                config.programs.directory = Some(programs.directory().to_owned());
                config.beneath_ipvs = true;
                Rules::new(Box::new(IptablesProxier::new(config).unwrap()))
            }
            Packets::Nft(refusals) => {
                let (refusals, family) = (refusals.clone(), self.family.clone());
                let transport = TransportKind::Netlink.open().unwrap();
                let transport = InterceptingTransport::altering(transport, move |transaction| {
                    if let Some(family) = *family.lock().unwrap() {
                        spoil(transaction, family, None);
                    }
                    match refusals.is_next_refused() {
                        true => Err(TransportError::Malformed("refused by a test".to_owned())),
                        false => Ok(()),
                    }
                });
                let mut config = NftConfig::default();
                config.beneath_ipvs = true;
                Rules::new(Box::new(NftProxier::new(config, Box::new(transport))))
            }
        }
    }

    /// The virtual servers and the addresses.
    fn services(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut ipvs = Ipvs::open().unwrap().unwrap();
        for server in ipvs.virtual_servers().unwrap() {
            let selector = name(&server.selector);
            let VirtualServer { scheduler, flags, timeout, netmask, .. } = &server;
            let line = format!("server {selector} {scheduler} {flags:#x} {timeout} {netmask:#x}");
            for real in ipvs.real_servers(&server.selector).unwrap() {
                let RealServer { address, weight, is_masquerading, .. } = real;
                let kind = if weight == 0 { "drained" } else { "real" };
                lines.push(format!("{kind} {selector} {address} {weight} {is_masquerading}"));
                if weight == 0 {
                    self.drained.lock().unwrap().insert(line.clone());
                }
            }
            lines.push(line);
        }
        if let Ok(addresses) = try_run(&format!("ip -o address show dev {DEVICE}")) {
            lines.push(format!("device {DEVICE}"));
            let address = |line: &str| line.split_once("inet").unwrap().1.replace('\\', "");
            lines.extend(addresses.lines().map(|line| format!("address inet{}", address(line))));
        }
        lines
    }

    /// Everything of the packet filter, a line for each object.
    fn rules(&self) -> Vec<String> {
        match self.packets {
            Packets::Nft(_) => nft_lines(),
            Packets::Iptables(_) => iptables_lines(),
        }
    }
}

/// The name of the chain that a line of a table is about.
fn chain(line: &str) -> &str {
    line.split_once(" chain ").map_or("", |(_, rest)| rest.split(':').next().unwrap_or(rest))
}

fn name(selector: &Selector) -> String {
    match selector {
        Selector::Address { protocol, ip, port } => {
            format!("{protocol} {}", SocketAddr::new(*ip, *port))
        }
        Selector::Mark { family, mark } => format!("{family} mark {mark}"),
    }
}

impl Subject for IpvsSubject {
    type Backend = IpvsProxier;

    fn in_namespace<T: Send + Default>(&self, work: impl FnOnce() -> T + Send) -> T {
        test_netns::in_namespace(|| {
            // Without an address, no address is a unicast address for the kernel.
            run("ip link set lo up");
            work()
        })
    }

    fn open(&self) -> IpvsProxier {
        let both = PerFamily { v4: true, v6: true };
        let kernel = Box::new(NodeKernel::new(Ipvs::open().unwrap().unwrap()).unwrap());
        let config = IpvsConfig::default();
        IpvsProxier::new(config, both, Scheduler::RoundRobin, kernel, self.rules_beneath())
    }

    fn dump(&self) -> String {
        let mut lines = self.services();
        lines.extend(self.rules());
        // Chains that translated until IPVS did, and stay.
        lines.retain(|line| !line.starts_with("table ") || !chain(line).contains("lb/"));
        lines.sort_unstable();
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Draining real servers, and chains that several Services share.
    fn may_remain(&self, line: &str) -> bool {
        line.starts_with("drained ")
            || self.drained.lock().unwrap().contains(line)
            || (line.starts_with("table ") && chain(line).contains('/'))
    }

    fn listing(&self) -> String {
        self.dump()
    }

    fn add_others(&self) {
        run(&format!("ip link add {OTHER_DEVICE} up type dummy"));
        match self.packets {
            Packets::Nft(_) => drop(run("nft add table ip theirs ; add chain ip theirs services")),
            Packets::Iptables(_) => {
                for program in ["iptables-nft", "ip6tables-nft"] {
                    run(&format!("{program} -w -t nat -N THEIRS"));
                    run(&format!("{program} -w -t nat -A OUTPUT -j THEIRS"));
                }
            }
        }
    }

    fn change_others(&self) {
        run(&format!("ip address add 192.0.2.99/32 dev {OTHER_DEVICE}"));
        run(&format!("ip address del 192.0.2.99/32 dev {OTHER_DEVICE}"));
    }

    fn damages(&self) -> Vec<Damage> {
        let command = |line: &'static str, drift| Damage::new(line, drift, move || drop(run(line)));
        let ipvs = |name: &str, drift, change: fn(&mut Batch)| {
            Damage::new(name, drift, move || {
                let mut batch = Batch::default();
                change(&mut batch);
                assert_eq!(Ipvs::open().unwrap().unwrap().commit(&batch).unwrap(), []);
            })
            .unreported()
        };
        let of_ipvs = vec![
            ipvs("a virtual server is deleted", "server TCP 10.96.0.1:80 was missing", |batch| {
                batch.delete_server(&web());
            }),
            ipvs("a virtual server is altered", "server TCP 10.96.0.1:80 was missing", |batch| {
                // While another scheduler is set, the rules translate, which leaves chains for the
                // next sync.
                let (selector, scheduler) = (web(), "rr".to_owned());
                let (flags, timeout, netmask) = (VirtualServer::PERSISTENT, 5, u32::MAX);
                batch.edit_server(&VirtualServer { selector, scheduler, flags, timeout, netmask });
                batch.edit_real(&web(), &RealServer::new(([10, 244, 0, 1], 80).into(), 5));
                batch.delete_real(&web(), ([10, 244, 0, 2], 80).into());
            }),
            ipvs("a virtual server is added", "server TCP 10.96.9.9:80 was", |batch| {
                let ip = IpAddr::from([10, 96, 9, 9]);
                let selector = Selector::Address { protocol: 6, ip, port: 80 };
                let scheduler = "rr".to_owned();
                let (flags, timeout, netmask) = (0, 0, u32::MAX);
                batch.add_server(&VirtualServer { selector, scheduler, flags, timeout, netmask });
            })
            .of_any_state(),
            command("ip address del 10.96.0.1/32 dev kube-ipvs0", "the address 10.96.0.1 of"),
            command("ip address add 10.96.9.9/32 dev kube-ipvs0", "the address 10.96.9.9 of")
                .of_any_state(),
            command("ip address del fd00::4/128 dev kube-ipvs0", "the address fd00::4 of"),
            command("ip link del kube-ipvs0", "the address 10.96.0.1 of").of_any_state(),
        ];
        match self.packets {
            Packets::Nft(_) => {
                let of_table = [
                    command("nft flush chain ip kube-proxy services", "the chain ip services had"),
                    command("nft delete table ip6 kube-proxy", "the table ip6 was").of_any_state(),
                ];
                of_ipvs.into_iter().chain(of_table).collect()
            }
            // What is not the packet filter's is the same with a table, which takes less time.
            Packets::Iptables(_) => vec![
                command("iptables-nft -w -t nat -F KUBE-SERVICES", "chain KUBE-SERVICES in nat"),
                command("ip6tables-nft -w -t filter -F INPUT", "chain INPUT in filter")
                    .of_any_state(),
            ],
        }
    }

    fn refuse(&self, transactions: Range<usize>) {
        match &self.packets {
            Packets::Nft(refusals) => refusals.set(transactions),
            Packets::Iptables(programs) => programs.refuse(transactions),
        }
    }

    fn refused(&self) -> usize {
        match &self.packets {
            Packets::Nft(refusals) => refusals.count(),
            Packets::Iptables(programs) => programs.refused(),
        }
    }

    /// The kernel refuses a real server at a broadcast address. The table, or the programs, of a
    /// family fail.
    fn refuse_part(&self, part: Option<&RefusedPart>) {
        let _ = try_run(&format!("ip address flush dev {OTHER_DEVICE}"));
        let family = match part {
            Some(RefusedPart::Family(family)) => Some(*family),
            Some(RefusedPart::Port(id)) => {
                assert!(id.family == IpFamily::V4 && id.name.service.name() == "dual", "{id}");
                run(&format!("ip address add {SUBNET} dev {OTHER_DEVICE}"));
                None
            }
            None => None,
        };
        *self.family.lock().unwrap() = family;
        if let Packets::Iptables(programs) = &self.packets {
            programs.refuse_part(family.map(|family| (family, None)));
        }
    }

    fn stories(&self) -> u32 {
        match self.packets {
            Packets::Nft(_) => 4,
            Packets::Iptables(_) => 2,
        }
    }

    fn events(&self) -> usize {
        12
    }
}

/// The virtual server of the kit's Service `web`.
fn web() -> Selector {
    Selector::Address { protocol: 6, ip: [10, 96, 0, 1].into(), port: 80 }
}
