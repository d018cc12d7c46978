//! The stories that every backend passes, and what they need of this one, with either flavour.

use std::{collections::BTreeMap, ops::Range};

use switchyard_core::{
    model::IpFamily,
    state::State,
    testing::conformance::{Damage, RefusedPart, Subject},
};
use switchyard_iptables::{Flavour, IptablesProxier, render};
use test_netns::RefusableIptables;

use crate::common::{Tables, in_namespace, iptables_config, web_chain};

switchyard_core::conformance!(legacy, Iptables::new(Flavour::Legacy));
switchyard_core::conformance!(nft, Iptables::new(Flavour::Nft));

/// The backend with one flavour, whose runs of `iptables-restore` can be refused.
struct Iptables {
    flavour: Flavour,
    programs: RefusableIptables,
}

impl Iptables {
    fn new(flavour: Flavour) -> Self {
        Self { flavour, programs: RefusableIptables::new(flavour) }
    }
}

impl Subject for Iptables {
    type Backend = IptablesProxier;

    fn in_namespace<T: Send + Default>(&self, work: impl FnOnce() -> T + Send) -> T {
        in_namespace(work)
    }

    fn open(&self) -> IptablesProxier {
        let mut config = iptables_config(self.flavour);
        config.programs.directory = Some(self.programs.directory().to_owned());
        IptablesProxier::new(config).expect("they are installed")
    }

    /// All chains but the one that is the kubelet's as well, which stays when it is not needed any
    /// more.
    fn dump(&self) -> String {
        let mut lines = String::new();
        for tables in Tables::both(self.flavour) {
            for ((table, chain), mut rules) in contents(&tables.save()) {
                if (table.as_str(), chain.as_str()) != ("filter", "KUBE-FIREWALL") {
                    rules.retain(|rule| rule != "-j KUBE-FIREWALL");
                    lines += &format!("{} {table} {chain} {rules:?}\n", tables.base);
                }
            }
        }
        lines
    }

    fn listing(&self) -> String {
        Tables::both(self.flavour).map(|tables| tables.save()).concat()
    }

    /// The tables hold the rules that are rendered, in the same words.
    fn check(&self, state: &State) {
        let config = iptables_config(self.flavour);
        for (tables, family) in Tables::both(self.flavour).iter().zip(IpFamily::ALL) {
            let have = contents(&tables.save());
            for (chain, rules) in contents(&render(&config, state, family)) {
                assert_eq!(have.get(&chain), Some(&rules), "{chain:?}");
            }
        }
    }

    fn add_others(&self) {
        for tables in Tables::both(self.flavour) {
            for table in ["mangle", "filter", "nat"] {
                tables.restore(&others(tables, table));
            }
        }
    }

    fn change_others(&self) {
        for tables in Tables::both(self.flavour) {
            tables.run("-t nat -A POSTROUTING -o elsewhere -j MASQUERADE");
            tables.run("-t nat -D POSTROUTING -o elsewhere -j MASQUERADE");
        }
    }

    fn damages(&self) -> Vec<Damage> {
        let [v4, v6] = Tables::both(self.flavour);
        let run = |tables: Tables, arguments: &'static str, drift| {
            let name = format!("{} {arguments}", tables.base);
            Damage::new(&name, drift, move || tables.run(arguments))
        };
        // Other programs' rules are flushed as well, and their programs restore them.
        let flush = |tables: Tables, table: &'static str, drift| {
            let name = format!("{} -t {table} -F", tables.base);
            Damage::new(&name, drift, move || {
                tables.run(&format!("-t {table} -F"));
                tables.restore(&others(tables, table));
            })
        };
        let canary = "*mangle\n:KUBE-PROXY-CANARY - [0:0]\n-X KUBE-PROXY-CANARY\nCOMMIT\n";
        vec![
            flush(v4, "nat", "the IPv4 chain KUBE-SERVICES in nat was"),
            flush(v4, "filter", "the IPv4 chain FORWARD in filter was").of_any_state(),
            flush(v6, "nat", "the IPv6 chain KUBE-SERVICES in nat was"),
            Damage::new("the canary of IPv6", "chain KUBE-PROXY-CANARY in mangle was", move || {
                v6.restore(canary);
            }),
            run(v4, "-t nat -F KUBE-SERVICES", "the IPv4 chain KUBE-SERVICES in nat was")
                .unreported(),
            Damage::new("flushed KUBE-SERVICES", "chain KUBE-SERVICES in nat was", move || {
                for tables in [v4, v6] {
                    tables.restore("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n");
                }
            })
            .of_any_state()
            .unreported(),
            Damage::new("no postrouting", "the IPv4 chain POSTROUTING in nat was", move || {
                v4.run("-t nat -F POSTROUTING");
                v4.restore(POSTROUTING);
            })
            .unreported(),
            run(v4, "-t filter -F KUBE-FORWARD", "the IPv4 chain KUBE-FORWARD in filter was")
                .unreported(),
            run(v4, "-t mangle -X KUBE-PROXY-CANARY", "chain KUBE-PROXY-CANARY in mangle was")
                .unreported(),
            run(v4, "-t nat -A KUBE-SERVICES -j ACCEPT", "the IPv4 chain KUBE-SERVICES in nat was")
                .of_any_state()
                .unreported(),
            run(
                v4,
                "-t nat -I POSTROUTING -j KUBE-POSTROUTING",
                "the IPv4 chain POSTROUTING in nat was",
            )
            .of_any_state()
            .unreported(),
            // The chains and jumps are still there: this is found after a delay.
            Damage::new("a Service's chain", "the IPv4 chain KUBE-SVC-", move || {
                let chain = web_chain(v4);
                v4.run(&format!("-t nat -F {chain}"));
            }),
        ]
    }

    fn refuse(&self, transactions: Range<usize>) {
        self.programs.refuse(transactions);
    }

    fn refuse_part(&self, part: Option<&RefusedPart>) {
        self.programs.refuse_part(part.map(RefusedPart::names));
    }

    fn refused(&self) -> usize {
        self.programs.refused()
    }

    fn stories(&self) -> u32 {
        match self.flavour {
            Flavour::Legacy => 64,
            Flavour::Nft => 24,
        }
    }

    fn events(&self) -> usize {
        match self.flavour {
            Flavour::Legacy => 24,
            Flavour::Nft => 20,
        }
    }
}

const POSTROUTING: &str = "*nat\n-A POSTROUTING -o docker0 -j MASQUERADE\nCOMMIT\n";

/// Rules of other programs in a table: in built-in chains, in their own chain, and in a chain
/// whose name begins like the backend's.
fn others(tables: Tables, table: &str) -> String {
    let rules = match table {
        "filter" => {
            ":THEIRS - [0:0]\n-A INPUT -p tcp -j THEIRS\n-A FORWARD -i docker0 -j ACCEPT\n\
             -A OUTPUT -o docker0 -j ACCEPT\n-A THEIRS -j RETURN\n"
        }
        "nat" => {
            ":KUBE-HOSTPORTS - [0:0]\n-A POSTROUTING -o docker0 -j MASQUERADE\n\
             -A KUBE-HOSTPORTS -p tcp -m tcp --dport 8080 -j RETURN\n"
        }
        "mangle" => "-A OUTPUT -o docker0 -j ACCEPT\n",
        other => panic!("{} has no table {other}", tables.base),
    };
    format!("*{table}\n{rules}COMMIT\n")
}

/// Chains and rules by table and chain. Shared chains are sorted: their rules may be in any order.
type Contents = BTreeMap<(String, String), Vec<String>>;

const SHARED: [&str; 5] = [
    "KUBE-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-PROXY-FIREWALL",
    "KUBE-FIREWALL",
];

fn contents(text: &str) -> Contents {
    let mut contents = Contents::new();
    let mut table = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(chain) = line.strip_prefix(':') {
            let name = chain.split(' ').next().unwrap_or(chain);
            contents.entry((table.to_owned(), name.to_owned())).or_default();
        } else if let Some(rest) = line.strip_prefix("-A ") {
            let (chain, rule) = rest.split_once(' ').expect("a rule");
            let rules = contents.entry((table.to_owned(), chain.to_owned())).or_default();
            rules.push(rule.to_owned());
        }
    }
    for ((table, chain), rules) in &mut contents {
        if (table.as_str(), chain.as_str()) == ("nat", "KUBE-SERVICES") {
            let ends = rules.last().is_some_and(|rule| rule.contains("must be the last rule"));
            // Other programs may append a rule.
            let is_damaged = rules.iter().any(|rule| rule == "-j ACCEPT");
            let is_used = rules.iter().any(|rule| rule.contains("KUBE-NODEPORTS"));
            assert!(ends || is_damaged || !is_used, "{rules:?}");
        }
        if SHARED.contains(&chain.as_str()) {
            rules.sort();
        }
    }
    contents
}
