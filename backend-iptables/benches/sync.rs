//! The time that Services take to get into the kernel with each flavour, beside the floor: the
//! program alone, on the smallest input that has the same effect, in the same run.
//!
//! `cargo bench -p switchyard-iptables --bench sync [-- SERVICES ENDPOINTS]`, as root: everything
//! happens in network namespaces of its own threads. Times are medians.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "benches fail by panics")]

use std::time::Duration;

use switchyard_core::{
    model::{IpFamily, PerFamily},
    objects::{Event, Object},
    testing::{
        ManyServices, Stepped,
        bench::{cluster_from_arguments, median, report, resolved, show, time},
    },
};
use switchyard_iptables::{Flavour, IptablesConfig, IptablesProxier, render};
use test_netns::{in_namespace, run_with};

/// Repetitions of a change.
const CHANGE_ROUNDS: usize = 9;

fn main() {
    let many = cluster_from_arguments();
    for flavour in Flavour::ALL {
        println!("{} Services x {} endpoints, iptables-{flavour}", many.services, many.endpoints);
        let (first_target, change_target) = match flavour {
            Flavour::Legacy => (Duration::from_millis(2150), Duration::from_millis(650)),
            Flavour::Nft => (Duration::from_secs(60), Duration::from_secs(5)),
        };
        let rounds = if flavour == Flavour::Legacy { 5 } else { 3 };
        let (first, floor): (Vec<_>, Vec<_>) = (0..rounds)
            .map(|_| (first_programming(&many, flavour), first_floor(&many, flavour)))
            .unzip();
        report("first programming", first, floor, first_target, 1);
        let times = changes(&many, flavour);
        report("one EndpointSlice change", times.changes, times.change_floor, change_target, 1);
        report("one Service more", times.additions, times.addition_floor, change_target, 1);
        println!("{:<28}{:>12}", "nothing differs, compared", show(median(times.comparisons), 1));
    }
}

/// The times of changes of a cluster that is programmed.
#[derive(Default)]
struct Times {
    changes: Vec<Duration>,
    change_floor: Vec<Duration>,
    additions: Vec<Duration>,
    addition_floor: Vec<Duration>,
    comparisons: Vec<Duration>,
}

/// A node that knows the cluster, and has synced nothing.
fn node(many: &ManyServices, flavour: Flavour) -> Stepped<IptablesProxier> {
    let proxier = IptablesProxier::new(config(flavour)).expect("iptables is installed");
    let mut node = Stepped::new(many.node(), proxier);
    node.apply(many.lists());
    node
}

fn first_programming(many: &ManyServices, flavour: Flavour) -> Duration {
    in_namespace(|| {
        let mut node = node(many, flavour);
        time(|| node.try_sync().expect("a first sync"))
    })
}

fn first_floor(many: &ManyServices, flavour: Flavour) -> Duration {
    in_namespace(|| restore(flavour, &render(&config(flavour), &resolved(many), IpFamily::V4)))
}

/// Measures changes of a cluster that is programmed, and the same changes by hand.
fn changes(many: &ManyServices, flavour: Flavour) -> Times {
    in_namespace(|| {
        let mut node = node(many, flavour);
        node.try_sync().expect("a first sync");
        let mut times = Times::default();
        let mut apply = |objects: Vec<Object>| {
            let events: Vec<Event> = objects.into_iter().map(Event::Apply).collect();
            time(|| node.sync(events))
        };
        for round in 0..CHANGE_ROUNDS {
            let slice = many.slice(round * 31 % many.services, round + 1);
            times.changes.push(apply(vec![slice]));
            // The same again for a chain of another name: it is made, later written anew.
            let mut text = "*nat\n:KUBE-SVC-FLOOR00000000000 - [0:0]\n".to_owned();
            for endpoint in 1..=many.endpoints {
                text += &format!(
                    "-A KUBE-SVC-FLOOR00000000000 -p tcp -m statistic --mode random \
                     --probability 0.5 -j DNAT --to-destination 10.9.{round}.{endpoint}:80\n"
                );
            }
            text += "COMMIT\n";
            times.change_floor.push(restore(flavour, &text));
        }
        for round in 0..CHANGE_ROUNDS {
            let i = many.services + round;
            times.additions.push(apply(vec![many.service(i), many.slice(i, 0)]));
            let rule = format!("-d 10.250.0.{round}/32 -p tcp -j KUBE-SVC-FLOOR00000000000");
            let text = format!("*nat\n-I KUBE-SERVICES 1 {rule}\nCOMMIT\n");
            times.addition_floor.push(restore(flavour, &text));
            restore(flavour, &format!("*nat\n-D KUBE-SERVICES {rule}\nCOMMIT\n"));
        }
        restore(
            flavour,
            "*nat\n:KUBE-SVC-FLOOR00000000000 - [0:0]\n-X KUBE-SVC-FLOOR00000000000\nCOMMIT\n",
        );
        times.comparisons = (0..3).map(|_| time(|| node.full())).collect();
        times
    })
}

fn config(flavour: Flavour) -> IptablesConfig {
    let families = PerFamily { v4: true, v6: false };
    let mut made = IptablesConfig::default();
    made.flavour = Some(flavour);
    made.families = families;
    made
}

/// Returns how long the program takes for `input`.
fn restore(flavour: Flavour, input: &str) -> Duration {
    let line = format!("iptables-{flavour}-restore -w 5 --noflush --counters");
    time(|| run_with(&line, input))
}
