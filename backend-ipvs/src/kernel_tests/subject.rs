//! The backend as the kit sees it, with either kind of rules.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, SocketAddr},
    ops::Range,
    os::unix::fs::PermissionsExt,
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
        OperationKind, Rule, Statement, TransportError, TransportKind, Verdict,
        testing::InterceptingTransport,
    },
};
use switchyard_nft::{NftConfig, NftProxier};
use tempfile::TempDir;
use test_netns::{run, try_run};

use crate::{
    DEVICE, IpvsConfig, Scheduler, probe,
    proxier::{IpvsProxier, kernel::NodeKernel},
    rules::Rules,
};

/// Another device of the node.
const OTHER_DEVICE: &str = "theirs";
/// Has the kernel take the address of an endpoint of the kit's for a broadcast address.
const SUBNET: &str = "10.250.0.1/32 broadcast 10.244.0.20";

/// The objects beside the virtual servers.
enum Packets {
    /// A table, whose transactions can be refused.
    Nft(Refusals),
    /// Programs of iptables, which can be made to fail.
    Iptables(TempDir),
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
        Self::new(Packets::Iptables(programs()))
    }

    fn new(packets: Packets) -> Option<Self> {
        let made = Self { packets, family: Arc::default(), drained: Mutex::default() };
        probe::is_loaded().then_some(made)
    }

    fn rules_beneath(&self) -> Rules {
        match &self.packets {
            Packets::Iptables(programs) => {
                let mut config = IptablesConfig::default();
                config.programs.directory = Some(programs.path().to_owned());
                config.beneath_ipvs = true;
                Rules::new(Box::new(IptablesProxier::new(config).unwrap()))
            }
            Packets::Nft(refusals) => {
                let (refusals, family) = (refusals.clone(), self.family.clone());
                let refused = || TransportError::Malformed("refused by a test".to_owned());
                let transport = TransportKind::Netlink.open().unwrap();
                let transport = InterceptingTransport::altering(transport, move |transaction| {
                    // What leads to a chain that is not there is refused.
                    let mut of_family = *family.lock().unwrap();
                    for operation in transaction.operations_mut() {
                        if let OperationKind::AddRule(_, rule) = &mut operation.kind
                            && of_family
                                .take_if(|f| IpFamily::from(operation.table.family) == *f)
                                .is_some()
                        {
                            *rule =
                                Rule::new([Statement::Verdict(Verdict::Goto("nowhere".into()))]);
                        }
                    }
                    if refusals.is_next_refused() {
                        return Err(refused());
                    }
                    Ok(())
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
            Packets::Nft(_) => tables(),
            Packets::Iptables(_) => {
                let mut lines = Vec::new();
                for program in ["iptables-nft-save", "ip6tables-nft-save"] {
                    let mut table = "";
                    let saved = run(program);
                    for line in saved.lines().filter(|line| !line.starts_with('#')) {
                        match line.strip_prefix('*') {
                            Some(name) => table = name,
                            None => lines.push(format!("{program} {table} {line}")),
                        }
                    }
                }
                lines
            }
        }
    }
}

/// The lines of the nft tables with the blocks that they are in, one for each element.
fn tables() -> Vec<String> {
    let listed = run("nft -s list ruleset");
    let mut lines = Vec::new();
    let mut table = String::new();
    let mut block = String::new();
    for line in listed.lines().map(str::trim) {
        match line.strip_suffix(" {") {
            Some(name) if name.starts_with("table ") => {
                name.clone_into(&mut table);
                block.clear();
                lines.push(table.clone());
            }
            Some(name) => {
                name.clone_into(&mut block);
                lines.push(format!("{table} {block}"));
            }
            None => {
                let text = line.trim_start_matches("elements = { ");
                let text = text.trim_end_matches([',', ' ', '}']);
                if !text.is_empty() {
                    let several = block.starts_with("set") || block.starts_with("map");
                    let parts = text.split(", ").filter(|_| several && !line.contains("flags"));
                    let parts: Vec<&str> = parts.collect();
                    let parts = if parts.is_empty() { vec![text] } else { parts };
                    lines.extend(parts.iter().map(|part| format!("{table} {block}: {part}")));
                }
            }
        }
    }
    lines
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

/// Programs of iptables that fail while there is a file `ip6tables` or `iptables`, or by the file
/// `range`, which has the runs of `iptables-restore` that fail.
fn programs() -> TempDir {
    const SCRIPT: &str = r#"#!/bin/sh
if [ -e DIRECTORY/BASE-fails ]; then
    echo "refused by a test" >&2
    exit 1
fi
if [ KIND = restore ] && [ -e DIRECTORY/range ]; then
    read from end < DIRECTORY/range
    run=$(wc -c < DIRECTORY/runs)
    printf . >> DIRECTORY/runs
    if [ "$run" -ge "$from" ] && [ "$run" -lt "$end" ]; then
        printf . >> DIRECTORY/refused
        cat > /dev/null
        echo "refused by a test" >&2
        exit 1
    fi
fi
exec NAME "$@"
"#;
    let programs = tempfile::tempdir().unwrap();
    for base in ["iptables", "ip6tables"] {
        for kind in ["", "-save", "-restore"] {
            let name = format!("{base}-nft{kind}");
            let script = SCRIPT
                .replace("DIRECTORY", programs.path().to_str().unwrap())
                .replace("BASE", base)
                .replace("KIND", kind.trim_start_matches('-'))
                .replace("NAME", &name);
            let path = programs.path().join(name);
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    programs
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
                let (selector, scheduler) = (web(), "wrr".to_owned());
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
            Packets::Iptables(programs) => {
                for name in ["range", "runs", "refused"] {
                    let _ = fs::remove_file(programs.path().join(name));
                }
                if !transactions.is_empty() {
                    // The shell counts in fewer bits.
                    let Range { start, end } = transactions;
                    fs::write(programs.path().join("runs"), "").unwrap();
                    let range = format!("{start} {}\n", end.min(1_000_000));
                    fs::write(programs.path().join("range"), range).unwrap();
                }
            }
        }
    }

    fn refused(&self) -> usize {
        match &self.packets {
            Packets::Nft(refusals) => refusals.count(),
            Packets::Iptables(programs) => {
                fs::read(programs.path().join("refused")).map_or(0, |dots| dots.len())
            }
        }
    }

    /// The kernel refuses a real server at a broadcast address. The table, or the programs, of a
    /// family fail.
    fn refuse_part(&self, part: Option<&RefusedPart>) {
        let _ = try_run(&format!("ip address flush dev {OTHER_DEVICE}"));
        let family = match part {
            Some(RefusedPart::Family(family)) => Some(*family),
            Some(RefusedPart::Port(id)) => {
                assert!(id.family == IpFamily::V4 && &*id.name.service.name == "dual", "{id}");
                run(&format!("ip address add {SUBNET} dev {OTHER_DEVICE}"));
                None
            }
            None => None,
        };
        *self.family.lock().unwrap() = family;
        if let Packets::Iptables(programs) = &self.packets {
            for (base, of) in [("iptables", IpFamily::V4), ("ip6tables", IpFamily::V6)] {
                let file = programs.path().join(format!("{base}-fails"));
                match family == Some(of) {
                    true => fs::write(file, "").unwrap(),
                    false => drop(fs::remove_file(file)),
                }
            }
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
