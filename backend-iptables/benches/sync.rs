//! How long Services take to get into the kernel with each flavour, beside the floor: the program
//! alone, on the smallest input that has the same effect, in the same run.
//!
//! `cargo bench -p backend-iptables --bench sync [-- SERVICES ENDPOINTS]`, as root: everything
//! happens in network namespaces of its own threads. Times are medians.

use std::{
    io::Write,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use backend_iptables::{Flavour, IptablesConfig, IptablesProxier, render};
use proxy_core::{
    model::{IpFamily, PerFamily},
    objects::{Event, Object},
    proxier::Proxier,
    testing::ManyServices,
    track::Tracker,
};
use test_netns::in_namespace;

/// Repetitions of a change.
const CHANGE_ROUNDS: usize = 9;

fn main() {
    // Cargo passes flags such as `--bench`.
    let numbers: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let many = ManyServices {
        services: numbers.first().copied().unwrap_or(10_000),
        endpoints: numbers.get(1).copied().unwrap_or(5),
    };
    let cluster = Cluster(many);
    for flavour in Flavour::ALL {
        println!("{} Services x {} endpoints, iptables-{flavour}", many.services, many.endpoints);
        let (first_target, change_target) = match flavour {
            Flavour::Legacy => (Duration::from_millis(2150), Duration::from_millis(650)),
            Flavour::Nft => (Duration::from_secs(60), Duration::from_secs(5)),
        };
        let rounds = if flavour == Flavour::Legacy { 5 } else { 3 };
        let (first, floor): (Vec<_>, Vec<_>) = (0..rounds)
            .map(|_| (cluster.first_programming(flavour), cluster.first_floor(flavour)))
            .unzip();
        report("first programming", first, floor, first_target);
        let times = cluster.changes(flavour);
        report("one EndpointSlice change", times.changes, times.change_floor, change_target);
        report("one Service more", times.additions, times.addition_floor, change_target);
        println!("{:<28}{:>12}", "nothing differs, compared", show(median(times.comparisons)));
    }
}

fn report(what: &str, times: Vec<Duration>, floor: Vec<Duration>, target: Duration) {
    let worst = times.iter().max().copied().unwrap_or_default();
    let (time, floor) = (median(times), median(floor));
    println!(
        "{what:<28}{:>12}   floor {:>12}   {:.2} x floor   worst {:>12}   target {} {}",
        show(time),
        show(floor),
        time.as_secs_f64() / floor.as_secs_f64(),
        show(worst),
        show(target),
        if time <= target { "met" } else { "MISSED" },
    );
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn show(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

#[derive(Clone, Copy)]
struct Cluster(ManyServices);

/// Of a cluster that is programmed.
#[derive(Default)]
struct Times {
    changes: Vec<Duration>,
    change_floor: Vec<Duration>,
    additions: Vec<Duration>,
    addition_floor: Vec<Duration>,
    comparisons: Vec<Duration>,
}

impl Cluster {
    /// A tracker that knows the cluster.
    fn tracker(&self) -> Tracker {
        let mut tracker = Tracker::new(self.0.node());
        for list in self.0.lists() {
            tracker.apply(list);
        }
        tracker.resolve();
        tracker
    }

    fn first_programming(self, flavour: Flavour) -> Duration {
        in_namespace(move || {
            let mut tracker = self.tracker();
            tracker.request_full();
            Engine { proxier: proxier(flavour), tracker }.sync()
        })
    }

    fn first_floor(self, flavour: Flavour) -> Duration {
        in_namespace(move || {
            let text = render(&config(flavour), self.tracker().state(), IpFamily::V4);
            restore(flavour, &text)
        })
    }

    /// Changes of a cluster that is programmed; and the same by hand.
    fn changes(self, flavour: Flavour) -> Times {
        in_namespace(move || {
            let mut engine = Engine { proxier: proxier(flavour), tracker: self.tracker() };
            engine.tracker.request_full();
            engine.sync();
            let mut times = Times::default();
            for round in 0..CHANGE_ROUNDS {
                let slice = self.0.slice(round * 31 % self.0.services, round + 1);
                times.changes.push(engine.apply([slice]));
                // The same again for a chain of another name: it is made, later written anew.
                let mut text = "*nat\n:KUBE-SVC-FLOOR00000000000 - [0:0]\n".to_owned();
                for endpoint in 1..=self.0.endpoints {
                    text += &format!(
                        "-A KUBE-SVC-FLOOR00000000000 -p tcp -m statistic --mode random \
                         --probability 0.5 -j DNAT --to-destination 10.9.{round}.{endpoint}:80\n"
                    );
                }
                text += "COMMIT\n";
                times.change_floor.push(restore(flavour, &text));
            }
            for round in 0..CHANGE_ROUNDS {
                let i = self.0.services + round;
                times.additions.push(engine.apply([self.0.service(i), self.0.slice(i, 0)]));
                let rule = format!("-d 10.250.0.{round}/32 -p tcp -j KUBE-SVC-FLOOR00000000000");
                let text = format!("*nat\n-I KUBE-SERVICES 1 {rule}\nCOMMIT\n");
                times.addition_floor.push(restore(flavour, &text));
                restore(flavour, &format!("*nat\n-D KUBE-SERVICES {rule}\nCOMMIT\n"));
            }
            restore(
                flavour,
                "*nat\n:KUBE-SVC-FLOOR00000000000 - [0:0]\n-X KUBE-SVC-FLOOR00000000000\nCOMMIT\n",
            );
            for _ in 0..3 {
                engine.tracker.request_full();
                times.comparisons.push(engine.sync());
            }
            times
        })
    }
}

fn config(flavour: Flavour) -> IptablesConfig {
    let families = PerFamily { v4: true, v6: false };
    IptablesConfig { flavour: Some(flavour), families, ..IptablesConfig::default() }
}

fn proxier(flavour: Flavour) -> IptablesProxier {
    IptablesProxier::new(config(flavour)).expect("iptables is installed")
}

/// How long the program takes for `input`.
fn restore(flavour: Flavour, input: &str) -> Duration {
    let start = Instant::now();
    let mut child = Command::new(format!("iptables-{flavour}-restore"))
        .args(["-w", "5", "--noflush", "--counters"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("iptables is installed");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    assert!(child.wait().expect("it ends").success());
    start.elapsed()
}

struct Engine {
    proxier: IptablesProxier,
    tracker: Tracker,
}

impl Engine {
    /// Applies objects; returns the time until the kernel has them.
    fn apply(&mut self, objects: impl IntoIterator<Item = Object>) -> Duration {
        let start = Instant::now();
        for object in objects {
            self.tracker.apply(Event::Apply(object));
        }
        self.tracker.resolve();
        let resolved = start.elapsed();
        resolved + self.sync()
    }

    fn sync(&mut self) -> Duration {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let start = Instant::now();
        let sync = self.proxier.sync(self.tracker.state(), self.tracker.delta());
        runtime.block_on(sync).unwrap_or_else(|error| {
            panic!("{error}: {:?}", std::error::Error::source(&error));
        });
        let time = start.elapsed();
        self.tracker.mark_synced();
        time
    }
}
