//! The proxy is killed and started again under load: no connection is lost, and the kernel is sent
//! the differences alone.

use std::{collections::BTreeMap, thread, time::Duration};

use packet_rig::{
    Case, Rig, Target, backend,
    case::{Expectation, ProbePlan, Reaches},
    objects::{service, slice},
    wait::until_ok,
};

use crate::traffic::{Route, Traffic};

/// Services besides the one under load, so that a difference is much less than the whole.
const OTHERS: usize = 200;

/// The metric of the bytes sent to the kernel.
const SENT: &str = "switchyard_transaction_bytes_sum";

/// A port of pods.
const PORT: &str = "{name: '', port: 8080}";

fn web() -> String {
    const PORTS: &str = "{name: t, port: 8080}, {name: u, port: 8080, protocol: UDP}";
    let spec = "type: NodePort, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, 'fd00:10:96::10'], \
                ipFamilies: [IPv4, IPv6], ports: [{name: t, port: 80, nodePort: 30080}, \
                {name: u, port: 80, nodePort: 30080, protocol: UDP}]";
    let sticky = "sessionAffinity: ClientIP, clusterIP: 10.96.0.20, ports: [{port: 80}]";
    let weights = "annotations: {switchyard/weights: '10.244.1.10=7,10.244.2.10=2'}, name: web-4";
    [
        service("web", "switchyard/lb-algorithm: maglev", spec),
        slice("web", PORTS, &["10.244.1.10", "10.244.2.10"]).replace("name: web-4", weights),
        slice("web", PORTS, &["fd00:10:244:1::10"]),
        service("sticky", "", sticky),
        slice("sticky", PORT, &["10.244.1.10", "10.244.2.11"]),
    ]
    .concat()
}

/// The traffic in the meantime: the place of the clients, and their target.
const LOAD: [Route; 6] = [
    ("client", "tcp://10.96.0.10:80"),
    ("client", "udp://192.168.10.1:30080"),
    ("b", "udp://10.96.0.10:80"),
    ("b", "tcp://[fd00:10:96::10]:80"),
    ("node-1", "tcp://192.168.10.1:30080"),
    ("node-2", "tcp://10.96.0.20:80"),
];

/// A Service whose endpoint can move.
fn moving(endpoint: &str) -> String {
    let spec = "type: NodePort, clusterIP: 10.96.0.30, ports: [{port: 80, nodePort: 30090}]";
    service("moving", "", spec) + &slice("moving", PORT, &[endpoint])
}

fn others(endpoints: &[&str]) -> String {
    let other = |i| {
        let (name, spec) =
            (format!("other-{i}"), format!("clusterIP: 10.96.1.{i}, ports: [{{port: 80}}]"));
        service(&name, "", &spec) + &slice(&name, PORT, endpoints)
    };
    (0..OTHERS).map(other).collect()
}

fn target(text: &str) -> Target {
    text.parse().unwrap()
}

/// Whether a new process of the backend sends the differences from the kernel's rules alone.
fn is_incremental(backend: &str) -> bool {
    ["nftables", "iptables"].contains(&backend::mode(backend))
}

fn start(backend: &str) -> Rig {
    let case = Case {
        name: "restart".to_owned(),
        cluster_cidr: true,
        manifests: web(),
        files: BTreeMap::from([
            ("others.yaml".to_owned(), others(&["10.244.2.10", "10.244.2.11"])),
            ("moving.yaml".to_owned(), moving("10.244.1.10")),
        ]),
        ..Case::default()
    };
    Rig::start(&case, backend).unwrap()
}

/// Runs a test with each selected backend; the backend's name is printed before.
fn with_every_backend(test: impl Fn(&str)) {
    let _calm = crate::stay_calm();
    for backend in crate::backends() {
        println!("--- {backend}");
        test(backend);
    }
}

/// Bytes that this process has sent the kernel so far.
fn sent(rig: &Rig) -> f64 {
    rig.proxy.metric(SENT).unwrap().iter().sum()
}

/// The requests of 17 clients whose endpoint is remembered or compared.
fn sticky_clients(change: impl FnOnce(&mut Reaches)) -> [ProbePlan; 1] {
    let mut reaches = Reaches::all_of(["a", "d"]);
    reaches.same_endpoint = true;
    change(&mut reaches);
    let to = [target("tcp://10.96.0.20:80")];
    let plan = ProbePlan::new(&["client"], &to, Expectation::Reaches(reaches));
    [ProbePlan { sources: 17, ..plan }]
}

fn moving_reaches(endpoint: &str) -> [ProbePlan; 1] {
    let to = [target("tcp://10.96.0.30:80"), target("tcp://192.168.10.1:30090")];
    let expect = Expectation::Reaches(Reaches::all_of([endpoint]));
    [ProbePlan::new(&["client", "node-1"], &to, expect)]
}

#[test]
fn killed_under_load_it_loses_nothing_and_sends_nothing() {
    with_every_backend(kill_under_load);
}

fn kill_under_load(backend: &str) {
    let mut rig = start(backend);
    rig.check(&sticky_clients(|reaches| {
        reaches.clients_differ = true;
        reaches.remember = Some("before".to_owned());
    }))
    .unwrap();
    assert!(sent(&rig) > 0.0, "the first process must have programmed something");
    let load = Traffic::start(&rig, &LOAD, 3);
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(300));
        rig.proxy.kill();
        thread::sleep(Duration::from_millis(300));
        rig.start_again().unwrap();
        // Long enough for a second look at anything.
        thread::sleep(Duration::from_millis(700));
        if is_incremental(backend) {
            assert_eq!(sent(&rig), 0.0, "nothing has changed: {}", rig.proxy.log());
        }
    }
    load.assert_nothing_lost();
    rig.check(&sticky_clients(|reaches| reaches.same_as = Some("before".to_owned()))).unwrap();
}

#[test]
fn what_changed_while_it_was_away_is_sent_alone() {
    with_every_backend(change_while_away);
}

fn change_while_away(backend: &str) {
    let mut rig = start(backend);
    rig.check(&moving_reaches("a")).unwrap();
    let everything = sent(&rig);
    rig.write("moving.yaml", &moving("10.244.1.11")).unwrap();
    rig.check(&moving_reaches("b")).unwrap();
    // Packets follow the commit, which is counted a moment later.
    let by_the_running_one = until_ok(|| match sent(&rig) - everything {
        more if more > 0.0 => Ok(more),
        _ => Err("nothing is counted as sent"),
    });

    let load = Traffic::start(&rig, &LOAD, 3);
    thread::sleep(Duration::from_millis(300));
    rig.proxy.kill();
    rig.write("moving.yaml", &moving("10.244.1.10")).unwrap();
    thread::sleep(Duration::from_millis(300));
    rig.check(&moving_reaches("b")).unwrap();
    rig.start_again().unwrap();
    rig.check(&moving_reaches("a")).unwrap();
    thread::sleep(Duration::from_millis(700));
    let by_the_new_one = sent(&rig);
    println!(
        "everything: {everything} bytes; one endpoint, running: {by_the_running_one}, \
         away: {by_the_new_one}"
    );
    if is_incremental(backend) {
        // A new process may send a little more than a process that knows what it wrote.
        assert!(by_the_new_one > 0.0 && by_the_new_one <= 2.0 * by_the_running_one);
        assert!(by_the_new_one * 20.0 < everything);
    }
    load.assert_nothing_lost();
}

#[test]
fn killed_at_any_moment_of_a_sync_it_loses_nothing() {
    with_every_backend(kill_in_syncs);
}

/// Has the proxy killed while it moves all other Services, later in each round.
fn kill_in_syncs(backend: &str) {
    const ROUNDS: u32 = 8;
    const LATER: Duration = Duration::from_millis(12);
    let mut rig = start(backend);
    let load = Traffic::start(&rig, &LOAD, 3);
    for round in 0..ROUNDS {
        let (endpoint, name) = [("10.244.2.10", "c"), ("10.244.2.11", "d")][round as usize % 2];
        rig.write("others.yaml", &others(&[endpoint])).unwrap();
        thread::sleep(LATER * round);
        rig.proxy.kill();
        rig.start_again().unwrap();
        let to = ["tcp://10.96.1.0:80", "tcp://10.96.1.199:80"].map(target);
        let expect = Expectation::Reaches(Reaches::all_of([name]));
        rig.check(&[ProbePlan::new(&["client", "node-1"], &to, expect)]).unwrap();
    }
    load.assert_nothing_lost();
}
