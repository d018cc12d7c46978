//! Namespaces, the program `nft` in two versions, and a ruleset with everything in it.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use switchyard_kernel::nftables::{
    BaseChain, ChainKind, Element, ElementDump, Family, Field, Hook, InterfaceMatch, Key,
    OperationKind, Rule, Selector, SetDef, Side, Statement, Table, Transaction, Transport, Value,
    Verdict, netlink::NetlinkTransport,
};
use switchyard_model::Protocol;
pub use test_netns::in_namespace;
use test_netns::run_command;

use super::slots;

/// A program `nft`, which runs in the network namespace of the thread that starts it.
#[derive(Clone, Debug)]
pub struct Nft(pub PathBuf);

impl Nft {
    pub fn installed() -> Self {
        Self("nft".into())
    }

    /// Debian trixie's nft 1.1.3; `None` on machines without a package mirror.
    pub fn trixie() -> Option<Self> {
        test_netns::nft_trixie(Path::new(env!("CARGO_TARGET_TMPDIR"))).map(Self)
    }

    pub fn all() -> Vec<Self> {
        [Some(Self::installed()), Self::trixie()].into_iter().flatten().collect()
    }

    /// Runs nft and returns its output.
    ///
    /// # Panics
    ///
    /// If nft fails.
    pub fn run(&self, arguments: &[&str], input: &str) -> String {
        self.try_run(arguments, input).unwrap_or_else(|why| {
            panic!("{self:?} {arguments:?}: {why}\n{}", &input[..input.len().min(4000)])
        })
    }

    pub fn try_run(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        run_command(Command::new(&self.0).args(arguments), input)
    }

    /// The ruleset without counters.
    pub fn list(&self) -> String {
        self.run(&["-s", "list", "ruleset"], "")
    }

    pub fn load(&self, ruleset: &str) {
        self.run(&["-f", "-"], ruleset);
    }

    pub fn flush(&self) {
        self.run(&["flush", "ruleset"], "");
    }

    /// Whether this nft can load the rule as text. 1.0.6 aborts on an update of a map to values of
    /// more than 16 bytes, which it prints like any other rule.
    pub fn takes(&self, family: Family, rule: &Rule) -> bool {
        let is_update = |statement: &Statement| matches!(statement, Statement::UpdateMap { .. });
        let is_long = family == Family::Ip6 && rule.statements.iter().any(is_update);
        !is_long || !self.run(&["--version"], "").contains("v1.0.6")
    }
}

pub fn netlink() -> NetlinkTransport {
    NetlinkTransport::open().unwrap()
}

/// Runs a test with a transport in a namespace of its own.
pub fn with_netlink(test: impl FnOnce(NetlinkTransport) + Send) {
    in_namespace(|| test(netlink()));
}

/// The table of a family that tests program.
pub fn table(family: Family) -> Table {
    Table::new(family, "kube-proxy")
}

pub fn tables() -> [Table; 2] {
    Family::ALL.map(table)
}

/// The address with the number `last`, in a network for tests.
pub fn address(family: Family, last: u16) -> IpAddr {
    match family {
        Family::Ip => Ipv4Addr::from(0x0a00_0000 + u32::from(last)).into(),
        Family::Ip6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).into(),
    }
}

/// Sets and maps of every kind.
pub struct Sets {
    pub addresses: Arc<SetDef>,
    pub hairpins: Arc<SetDef>,
    pub known: Arc<SetDef>,
    pub affinity: Arc<SetDef>,
    pub originals: Arc<SetDef>,
    pub original_ports: Arc<SetDef>,
    pub services: Arc<SetDef>,
    pub nodeports: Arc<SetDef>,
    pub endpoints: Arc<SetDef>,
    pub nodeport_endpoints: Arc<SetDef>,
    pub tcp_endpoints: Arc<SetDef>,
    pub sctp_endpoints: Arc<SetDef>,
    pub hashed_endpoints: Arc<SetDef>,
    pub ranges: Arc<SetDef>,
}

impl Sets {
    pub fn new(family: Family) -> Self {
        use Field::{InetProto, InetService, Port, Slot};
        let ip = family.address_field();
        let [tcp, udp, sctp] = Protocol::ALL.map(Port);
        Self {
            addresses: SetDef::set("cluster-ips", [ip]).with_comment("all of them").into(),
            hairpins: SetDef::set("hairpins", [ip, ip, InetProto, InetService]).into(),
            known: SetDef::set("known", [ip, InetProto, InetService]).into(),
            affinity: SetDef::map("affinity", [ip], [ip, tcp])
                .with_timeout(Duration::from_secs(10_800))
                .into(),
            originals: SetDef::verdict_map("originals", [ip, InetService]).into(),
            original_ports: SetDef::verdict_map("original-ports", [InetService]).into(),
            services: SetDef::verdict_map("service-ips", [ip, InetProto, InetService]).into(),
            nodeports: SetDef::verdict_map("nodeports", [InetProto, InetService]).into(),
            endpoints: SetDef::map("endpoints", [ip, InetProto, tcp, Slot], [ip, tcp])
                .with_comment("slots of services")
                .into(),
            nodeport_endpoints: SetDef::map(
                "nodeport-endpoints",
                [InetProto, udp, Slot],
                [ip, udp],
            )
            .into(),
            tcp_endpoints: SetDef::map("tcp-endpoints", [ip, tcp, Slot], [ip, tcp]).into(),
            sctp_endpoints: SetDef::map("sctp-endpoints", [ip, sctp, Slot], [ip, sctp]).into(),
            hashed_endpoints: SetDef::map("hashed-endpoints", [ip, Slot], [ip, tcp]).into(),
            ranges: SetDef::interval_set("ranges", ip).with_comment("of sources").into(),
        }
    }

    pub fn all(&self) -> [&Arc<SetDef>; 14] {
        [
            &self.addresses,
            &self.hairpins,
            &self.known,
            &self.affinity,
            &self.originals,
            &self.original_ports,
            &self.services,
            &self.nodeports,
            &self.endpoints,
            &self.nodeport_endpoints,
            &self.tcp_endpoints,
            &self.sctp_endpoints,
            &self.hashed_endpoints,
            &self.ranges,
        ]
    }
}

/// The elements that a scan shows; `None` if there is no such set.
pub fn scanned(
    transport: &mut dyn Transport,
    table: &Table,
    set: &SetDef,
) -> Option<Vec<ElementDump>> {
    let mut elements = Vec::new();
    let is_there = transport.scan_elements(table, set, &mut |element| {
        elements.push(element);
        ControlFlow::Continue(())
    });
    is_there.unwrap().then_some(elements)
}

/// Adds a table with sets and chains and without rules.
pub fn add_table(transaction: &mut Transaction, table: &Table) -> Sets {
    let sets = Sets::new(table.family);
    transaction.add_table_with_comment(table, "rules for kube-proxy");
    for set in sets.all() {
        transaction.add_set(table, set.clone());
    }
    for (name, kind, hook, priority) in [
        ("nat-prerouting", ChainKind::Nat, Hook::Prerouting, -100),
        ("nat-output", ChainKind::Nat, Hook::Output, -100),
        ("nat-postrouting", ChainKind::Nat, Hook::Postrouting, 100),
        ("filter-prerouting-pre-dnat", ChainKind::Filter, Hook::Prerouting, -110),
        ("filter-input", ChainKind::Filter, Hook::Input, 0),
        ("filter-forward", ChainKind::Filter, Hook::Forward, 0),
        ("filter-output", ChainKind::Filter, Hook::Output, 0),
    ] {
        let name = name.into();
        transaction.add_base_chain(table, BaseChain { name, kind, hook, priority });
    }
    for name in ["services", "lb-1", "lb-2", "dropped"] {
        transaction.add_chain(table, name);
    }
    sets
}

/// A table with sets and chains, and one rule.
pub fn with_rule(family: Family, chain: &str, rule: &Rule) -> Transaction {
    let mut transaction = Transaction::new();
    add_table(&mut transaction, &table(family));
    transaction.add_rule(&table(family), chain, rule.clone());
    transaction
}

/// Adds elements to all sets but the dynamic set.
pub fn add_elements(transaction: &mut Transaction, table: &Table, sets: &Sets) {
    let family = table.family;
    let [vip, endpoint] = [address(family, 1), address(family, 0x101)];
    let goto = || Verdict::Goto("lb-1".into());
    let key = |protocol| Key::new().address(vip).protocol(protocol).port(80);
    transaction.add_elements(
        table,
        &sets.addresses,
        vec![
            Element::new(Key::new().address(vip)),
            Element::new(Key::new().address(endpoint)).with_comment("with a comment"),
        ],
    );
    transaction.add_elements(
        table,
        &sets.hairpins,
        vec![Element::new(
            Key::new().address(endpoint).address(endpoint).protocol(Protocol::Sctp).port(8080),
        )],
    );
    transaction.add_elements(
        table,
        &sets.services,
        vec![
            Element::verdict(key(Protocol::Tcp), goto()).with_comment("default/web:http"),
            Element::verdict(key(Protocol::Udp), Verdict::Drop),
            Element::verdict(key(Protocol::Sctp), Verdict::Jump("lb-2".into())),
        ],
    );
    let port = Key::new().protocol(Protocol::Tcp).port(30_080);
    transaction.add_elements(table, &sets.nodeports, vec![Element::verdict(port, goto())]);
    let value = Value::new().address(endpoint).port(8080);
    transaction.add_elements(
        table,
        &sets.endpoints,
        vec![
            Element::value(key(Protocol::Tcp).slot(0), value),
            Element::value(key(Protocol::Tcp).slot(258), value).with_comment("the 258th"),
        ],
    );
    transaction.add_elements(
        table,
        &sets.nodeport_endpoints,
        vec![Element::value(port.slot(1), value)],
    );
    // An interval from the first address on, one to the last, addresses, networks, and what is
    // none.
    let nets: &[&str] = match family {
        Family::Ip => &[
            "0.0.0.0/8",
            "10.0.0.0/9",
            "192.0.2.1/32",
            "192.0.2.4/30",
            "192.0.2.8/32",
            "240.0.0.0/4",
        ],
        Family::Ip6 => &[
            "::/16",
            "fd00::/9",
            "2001:db8::1/128",
            "2001:db8::4/126",
            "2001:db8::8/128",
            "ff00::/8",
        ],
    };
    let nets: Vec<IpNet> = nets.iter().map(|net| net.parse().unwrap()).collect();
    transaction.add_elements(table, &sets.ranges, Element::intervals(&nets));
}

/// Rules with every statement, each with a chain that may have such a rule.
pub fn rules(family: Family) -> Vec<(&'static str, Rule)> {
    use Selector::{
        DestinationAddress, DestinationPort, OriginalDestination, OriginalDestinationPort,
        OriginalSource, Protocol as L4, SourceAddress, SourcePort,
    };
    let other = match family {
        Family::Ip => ["10.0.0.0/8", "10.128.0.0/9", "10.1.2.3/32", "0.0.0.0/0", "10.1.2.0/23"],
        Family::Ip6 => ["fd00::/8", "fd80::/9", "fd00::1/128", "::/0", "fd00:1:2::/47"],
    };
    let vip = || vec![DestinationAddress, L4, DestinationPort];
    let port = || vec![L4, DestinationPort];
    let net = |side, negated, index: usize| Statement::Address {
        side,
        negated,
        net: other[index].parse().unwrap(),
    };
    let exact = |name: &str| InterfaceMatch::Exact(name.into());
    let prefix = |name: &str| InterfaceMatch::Prefix(name.into());
    let interface = |negated, name| Statement::InputInterface { negated, name };
    let goto = |chain: &str| Verdict::Goto(chain.into());
    let mut rules: Vec<(&'static str, Rule)> = Vec::new();
    let mut rule = |chain, statements: Vec<Statement>| rules.push((chain, Rule::new(statements)));
    rule("services", vec![Statement::CtStateNew]);
    rule("services", vec![Statement::CtStatusDnat]);
    for (side, negated) in [
        (Side::Source, false),
        (Side::Source, true),
        (Side::Destination, false),
        (Side::Destination, true),
    ] {
        for index in 0..other.len() {
            rule("services", vec![net(side, negated, index)]);
        }
        rule("services", vec![Statement::FibLocal(side)]);
    }
    for negated in [false, true] {
        rule("services", vec![interface(negated, exact("eth0"))]);
        rule("services", vec![interface(negated, exact("fifteen-letters"))]);
        rule("services", vec![interface(negated, prefix("cali"))]);
        rule("services", vec![interface(negated, prefix("v"))]);
        rule("services", vec![interface(negated, InterfaceMatch::Kind("vrf".into()))]);
    }
    for protocol in Protocol::ALL {
        rule("services", vec![Statement::Protocol(protocol)]);
    }
    rule("services", vec![Statement::MarkSet(0x4000)]);
    rule("services", vec![Statement::MarkOr(0x4000)]);
    rule("services", vec![Statement::MarkXor(0x4000)]);
    rule("services", vec![Statement::MarkOr(0x8000_0000)]);
    for (key, set) in [
        (vec![DestinationAddress], "cluster-ips"),
        (vec![SourceAddress], "cluster-ips"),
        (vec![SourceAddress], "ranges"),
        (vec![SourceAddress, DestinationAddress, L4, DestinationPort], "hairpins"),
        (vec![SourceAddress, L4, SourcePort], "known"),
    ] {
        rule("services", vec![Statement::Lookup { key, set: set.into() }]);
    }
    rule("services", vec![Statement::VerdictMap { key: vip(), map: "service-ips".into() }]);
    rule("services", vec![Statement::VerdictMap { key: port(), map: "nodeports".into() }]);
    let originals = [
        (vec![OriginalDestination, OriginalDestinationPort], "originals"),
        (vec![OriginalDestinationPort], "original-ports"),
    ];
    for (key, map) in originals {
        let by_original = Statement::VerdictMap { key, map: map.into() };
        rule("services", vec![Statement::Protocol(Protocol::Udp), by_original]);
    }
    for chosen in slots::rules() {
        rule("lb-1", chosen.statements);
    }
    let dnat = Statement::DnatMap { key: vec![SourceAddress], map: "affinity".into() };
    rule("lb-2", vec![Statement::Protocol(Protocol::Tcp), dnat]);
    let update = Statement::UpdateMap {
        protocol: Protocol::Tcp,
        key: vec![OriginalSource],
        value: vec![DestinationAddress, DestinationPort],
        map: "affinity".into(),
    };
    let is_known = Statement::Lookup { key: vip(), set: "known".into() };
    rule("services", vec![is_known, update]);
    rule("lb-2", vec![Statement::DnatToItself]);
    rule("nat-postrouting", vec![Statement::Masquerade]);
    rule("filter-input", vec![Statement::Reject]);
    let of_socket = vec![Statement::CtReply, Statement::SocketTransparent];
    rule("filter-prerouting-pre-dnat", of_socket);
    rule("filter-prerouting-pre-dnat", vec![Statement::SocketWildcard, Statement::MarkOr(0x2000)]);
    for verdict in [Verdict::Accept, Verdict::Drop, Verdict::Return, goto("dropped")] {
        rule("filter-forward", vec![Statement::CtStateNew, Statement::Verdict(verdict)]);
    }
    rule("nat-prerouting", vec![Statement::Verdict(Verdict::Jump("services".into()))]);
    rule(
        "services",
        vec![
            net(Side::Source, true, 0),
            Statement::Lookup { key: vec![DestinationAddress], set: "cluster-ips".into() },
            Statement::MarkOr(0x4000),
            Statement::Verdict(Verdict::Jump("dropped".into())),
        ],
    );
    let commented = Rule::new([Statement::Verdict(Verdict::Drop)]);
    rules.push(("dropped", commented.with_comment("the quick brown fox ".repeat(10))));
    rules
}

/// An element of the map `affinity`, with the seconds that remain.
pub fn remembered(family: Family, seconds: u64) -> ElementDump {
    let value = Value::new().address(address(family, 0x101)).port(80);
    ElementDump {
        element: Element::value(Key::new().address(address(family, 0x909)), value),
        expires: Some(Duration::from_secs(seconds)),
    }
}

/// Both tables with all sets, elements and rules.
pub fn everything() -> Transaction {
    everything_with(|_, _| true)
}

/// Both tables with all sets and elements, and those rules that `takes` accepts.
pub fn everything_with(takes: impl Fn(Family, &Rule) -> bool) -> Transaction {
    let mut transaction = Transaction::new();
    for table in tables() {
        let sets = add_table(&mut transaction, &table);
        for (chain, rule) in rules(table.family) {
            if takes(table.family, &rule) {
                transaction.add_rule(&table, chain, rule);
            }
        }
        add_elements(&mut transaction, &table, &sets);
    }
    transaction
}

/// Deletes elements, rules, chains and sets of [`everything`], one by one.
pub fn undo_everything() -> Transaction {
    let mut transaction = Transaction::new();
    for table in &tables() {
        let mut elements = Transaction::new();
        let sets = Sets::new(table.family);
        add_elements(&mut elements, table, &sets);
        for operation in elements.operations() {
            let OperationKind::AddElements(set, elements) = &operation.kind else {
                panic!("{operation}")
            };
            let keys = elements.iter().map(|element| element.key).collect();
            transaction.delete_elements(table, set, keys);
        }
        let chains = ["services", "lb-1", "lb-2", "dropped"];
        for chain in chains.into_iter().chain(["nat-prerouting", "filter-forward"]) {
            transaction.flush_chain(table, chain);
        }
        for chain in chains {
            transaction.delete_chain(table, chain);
        }
        for set in sets.all() {
            transaction.delete_set(table, set.name.clone());
        }
    }
    transaction
}
