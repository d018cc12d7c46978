//! A proxy with a name (`--service-proxy-name`) beside the cluster's: each serves its own Services,
//! and neither notices that the other one comes, ends or is cleaned up after. Where `KUBE_PROXY`
//! names genuine kube-proxy, that is the cluster's proxy as well.

use packet_rig::{
    Case, Proxy, ProxyOptions, Rig,
    backend::{self, REFERENCES},
    binary,
    case::{Expectation, Failure, ProbePlan, Reaches},
    kube_proxy,
    objects::{service, slice},
};

const LABEL: &str = "service.kubernetes.io/service-proxy-name";
const FROM: [&str; 3] = ["b", "node-1", "client"];
const OWN: [&str; 2] = ["tcp://10.96.0.20:80", "tcp://192.168.10.1:30090"];
const OTHERS: [&str; 2] = ["tcp://10.96.0.10:80", "tcp://192.168.10.1:30080"];

fn manifests() -> String {
    let spec = |ip, port| {
        format!("type: NodePort, clusterIP: {ip}, ports: [{{port: 80, nodePort: {port}}}]")
    };
    let labelled = format!("name: pilot, labels: {{{LABEL}: pilot}},");
    let ports = "{name: '', port: 8080}";
    [
        "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\n\
         spec: {cidrs: [10.96.0.0/16]}\n"
            .to_owned(),
        service("web", "", &spec("10.96.0.10", 30080)),
        slice("web", ports, &["10.244.1.10"]),
        service("pilot", "", &spec("10.96.0.20", 30090)).replace("name: pilot,", &labelled),
        slice("pilot", ports, &["10.244.2.10", "10.244.1.11"]),
    ]
    .concat()
}

fn probes(to: &[&str], expect: Expectation) -> ProbePlan {
    let to: Vec<_> = to.iter().map(|target| target.parse().unwrap()).collect();
    ProbePlan::new(&FROM, &to, expect)
}

fn reaches(to: &[&str], endpoints: &[&str]) -> ProbePlan {
    probes(to, Expectation::Reaches(Reaches::all_of(endpoints.iter().copied())))
}

/// The number of tables of the proxy with the name.
fn tables(rig: &Rig) -> usize {
    let mut nft = rig.topology.node().namespace.command("nft");
    let listed = nft.args(["list", "tables"]).output().unwrap().stdout;
    String::from_utf8(listed).unwrap().matches("service-proxy-pilot").count()
}

fn clean_up(proxy: &Proxy, arguments: &[&str]) {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    let output = proxy.command(&arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn beside(backend: &str) {
    let binary = binary::find().unwrap();
    let case = Case {
        name: "beside".to_owned(),
        cluster_cidr: true,
        manifests: manifests(),
        ..Case::default()
    };
    let mut rig = Rig::start(&case, backend).unwrap();
    let of_others = reaches(&OTHERS, &["a"]);
    let of_own = reaches(&OWN, &["b", "c"]);
    rig.check(std::slice::from_ref(&of_others)).unwrap();

    let mut options = ProxyOptions {
        binary,
        command: None,
        backend: "nftables".to_owned(),
        config: None,
        args: [
            "--service-proxy-name=pilot",
            "--healthz-bind-address=127.0.0.1:10258",
            "--metrics-bind-address=127.0.0.1:10259",
        ]
        .map(str::to_owned)
        .into(),
        ..rig.proxy.options().clone()
    };
    options.log.set_extension("pilot");
    let mut pilot = Proxy::start(&rig.topology.node().namespace, options).unwrap();
    // A port that no Service has is refused by the proxy that has the Service.
    let undefined = probes(&["tcp://10.96.0.20:81"], Expectation::Fails(Failure::Refused));
    let both = [of_others.clone(), of_own.clone(), undefined];
    rig.check(&both).unwrap_or_else(|error| panic!("{error}\n{}", pilot.log()));
    assert_eq!(tables(&rig), 2);

    // The cluster's proxy starts again, which removes what other modes have left.
    rig.start_again().unwrap();
    rig.check(&both).unwrap();

    pilot.stop();
    clean_up(&pilot, &["--service-proxy-name=pilot", "--cleanup"]);
    assert_eq!(tables(&rig), 0);
    rig.check(std::slice::from_ref(&of_others)).unwrap();

    pilot.start_again().unwrap();
    rig.check(&both).unwrap();
    rig.proxy.stop();
    if !backend::is_kube_proxy(backend) {
        clean_up(&pilot, &["--cleanup"]);
    }
    rig.check(&[of_own]).unwrap();
}

#[test]
fn each_proxy_serves_its_own_services() {
    let genuine = kube_proxy::find().unwrap().map_or(&[][..], |_| &REFERENCES);
    for backend in ["nftables", "iptables"].iter().chain(genuine) {
        println!("--- {backend}");
        beside(backend);
    }
}

#[test]
fn only_nftables_mode_stands_beside_another_proxy() {
    let run = |arguments: &[&str]| {
        let mut switchyard = std::process::Command::new(binary::find().unwrap());
        let output = switchyard.args(arguments).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let log = run(&["--service-proxy-name=pilot", "--proxy-mode=iptables", "--manifests=/"]);
    assert!(log.contains("--service-proxy-name=pilot: a proxy beside another one"), "{log}");
    let log = run(&["--service-proxy-name=a b", "--manifests=/"]);
    assert!(log.contains("--service-proxy-name=a b: must be a value of a label"), "{log}");
}
