//! The API server is gone, comes back as another one, falls silent, and takes another token. All
//! the while, traffic to what is known goes on; and what has changed arrives.

use std::{fs, os::unix::fs::PermissionsExt, sync::mpsc, thread, time::Duration};

use api_standin::{Options, Resource, Standin};
use packet_rig::{
    Case, NetNs, Objects, Proxy, ProxyOptions, Rig, WorkDir, binary,
    case::{Expectation, Failure, ProbePlan, Reaches},
    objects,
    wait::until,
};
use serde_json::Value;
use test_netns::run;

use crate::{
    clocks::CLOCK,
    traffic::{Route, Traffic},
};

/// The clients of the healthy Service, in the meantime.
const LOAD: [Route; 2] = [("client", "tcp://10.96.0.10:80"), ("b", "udp://10.96.0.10:80")];

/// An hour in seconds, which is longer than any timeout of the program. Its clock is set forward.
const HOUR: u64 = 3600;

fn decoded(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

fn service(name: &str, ip: &str) -> Value {
    let ports = "[{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]";
    decoded(&objects::service(name, "", &format!("clusterIP: {ip}, ports: {ports}")))
}

fn slice(name: &str, endpoint: &str) -> Value {
    let ports = "{name: t, port: 8080}, {name: u, port: 8080, protocol: UDP}";
    decoded(&objects::slice(name, ports, &[endpoint]))
}

/// Starts a server in a namespace, with a runtime of its own, until the sender is dropped.
fn serve(namespace: &NetNs) -> (Standin, mpsc::Sender<()>) {
    let (sender, started) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let namespace = namespace.clone();
    thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let server = namespace.run(|| runtime.block_on(Standin::start(Options::default())));
        sender.send(server.unwrap()).unwrap();
        let _: Result<(), _> = ended.recv();
    });
    (started.recv().unwrap(), end)
}

/// Waits until connections of clients end so.
fn check(rig: &mut Rig, to: &str, expect: Expectation) {
    let checked = rig.check(&[ProbePlan::new(&["client"], &[to.parse().unwrap()], expect)]);
    checked.unwrap_or_else(|error| panic!("{error}\n{}", rig.proxy.log()));
}

/// Waits until connections to the Service that changes reach this endpoint alone.
fn moved_to(rig: &mut Rig, endpoint: &str) {
    check(rig, "tcp://10.96.0.20:80", Expectation::Reaches(Reaches::all_of([endpoint])));
}

/// The number of requests for EndpointSlices so far that have this in them.
fn asked(server: &Standin, part: &str) -> usize {
    let requests = server.requests();
    requests.iter().filter(|line| line.contains("/endpointslices?") && line.contains(part)).count()
}

#[test]
fn traffic_goes_on_while_the_api_server_is_gone_silent_or_another_one() {
    let _calm = crate::stay_calm();
    let binary = binary::find().unwrap();
    let case = Case { name: "outage".to_owned(), cluster_cidr: true, ..Case::default() };
    let mut rig = Rig::prepare(&case, "nftables", &binary).unwrap();
    let node = rig.topology.node().namespace.clone();
    let (server, _serving) = serve(&node);
    let (store, faults) = (server.store(), server.faults());
    let apply = |object| store.apply(object);
    apply(api_standin::load::node("node-1"));
    for (name, ip, endpoint) in [
        ("web", "10.96.0.10", "10.244.2.10"),
        ("moving", "10.96.0.20", "10.244.1.10"),
        ("old", "10.96.0.30", "10.244.1.10"),
    ] {
        apply(service(name, ip));
        apply(slice(name, endpoint));
    }

    // The program's clock since the start of the machine can be set forward.
    let files = WorkDir::new("outage-files").unwrap();
    let write = |name: &str, text: &str| files.replace("", name, text).unwrap();
    let source = write("clock.c", CLOCK);
    let (library, later) = (source.with_extension("so"), write("later", "0"));
    run(&format!("cc -shared -fPIC -o {} {}", library.display(), source.display()));
    let token = write("token", "standin-token");
    let user = format!("{{tokenFile: {}}}", token.display());
    let kubeconfig = write("kubeconfig", &server.kubeconfig_for(&user));
    let program = write(
        "proxy",
        &format!(
            "#!/bin/sh\nexport LD_PRELOAD={} CLOCK_LATER={}\nexec {} \"$@\"\n",
            library.display(),
            later.display(),
            binary.display()
        ),
    );
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let log = files.path().join("proxy.log");
    let mut options = ProxyOptions::new(program, "nftables", files.path().to_owned(), log);
    options.objects = Objects::Server(kubeconfig);
    options.args = vec!["--conntrack-max-per-core=0".to_owned()];
    rig.proxy = Proxy::prepare(&node, options);
    rig.start_again().unwrap();
    let mut seconds = 0;
    // Has hours pass until so many more such requests have come. While the
    // program waits for the server, it looks at no clock.
    let mut pass_hours = |rig: &Rig, part: &str, more: usize| {
        let before = asked(&server, part);
        until("hours pass", || {
            seconds += HOUR;
            write("later", &seconds.to_string());
            let is_awake = rig.proxy.metrics().is_ok();
            thread::sleep(Duration::from_millis(500));
            is_awake && asked(&server, part) >= before + more
        });
    };
    moved_to(&mut rig, "a");
    let load = Traffic::start(&rig, &LOAD, 3);

    // Away for an hour, and back with another history: older versions, and other objects.
    faults.refuse_connections(true);
    faults.cut_connections();
    pass_hours(&rig, "", 0);
    apply(slice("moving", "10.244.1.11"));
    assert!(store.delete(Resource::Services, "default", "old"));
    store.restore();
    faults.refuse_connections(false);
    // A watch from a version that the server has not reached yet is told nothing. After two of
    // these, everything is listed.
    pass_hours(&rig, "sendInitialEvents=true", 1);
    moved_to(&mut rig, "b");
    check(&mut rig, "tcp://10.96.0.30:80", Expectation::Fails(Failure::Unrouted));

    // Watches that die in silence.
    faults.stall_watches(true);
    apply(slice("moving", "10.244.2.11"));
    thread::sleep(Duration::from_millis(500));
    moved_to(&mut rig, "b");
    pass_hours(&rig, "", 1);
    faults.stall_watches(false);
    moved_to(&mut rig, "d");

    // Another token counts, and is in the file a moment later.
    server.set_token("another");
    faults.cut_connections();
    let is_refused = |line: &str| line.contains("Unauthorized") && line.contains("EndpointSlice");
    until("the old token is refused", || rig.proxy.log().lines().any(is_refused));
    apply(slice("moving", "10.244.1.10"));
    thread::sleep(Duration::from_millis(500));
    moved_to(&mut rig, "d");
    write("token", "another");
    pass_hours(&rig, "", 1);
    moved_to(&mut rig, "a");
    load.assert_nothing_lost();
}
