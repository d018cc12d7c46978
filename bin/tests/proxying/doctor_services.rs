//! `switchyard doctor` asks the API server and the running proxy, and looks what becomes of Services.

use std::{
    fs::{self, Permissions},
    io::{Read, Write},
    net::TcpListener,
    os::unix::{
        fs::{PermissionsExt, chown},
        net::{UnixListener, UnixStream},
    },
    path::Path,
    thread,
};

use api_standin::Resource;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    doctor::{Examined, examine, node},
    manifests::{Manifests, NODE, service, slice},
    namespace::{HEALTH, Program},
    standin::{Cluster, run},
    unprivileged::{Place, WITH_CAPABILITY},
};

/// The checks that were not made, with the reasons.
fn not_made(found: &Examined) -> Vec<(&str, &str)> {
    let all = found.report["notChecked"].as_array().unwrap().iter();
    all.map(|one| (one["check"].as_str().unwrap(), one["reason"].as_str().unwrap())).collect()
}

fn kubernetes() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default"},
        "spec": {"type": "NodePort", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
            "ipFamilies": ["IPv4"], "ports": [{"port": 443, "protocol": "TCP", "nodePort": 30443}]}
    })
}

#[test]
fn the_api_server_and_node_ports_are_looked_at_without_a_proxy() {
    run(|namespace| async move {
        namespace.0.sysctl(&[("ipv4/ip_forward", "1")]).unwrap();
        let cluster = Cluster::start().await;
        cluster.server.store().apply(kubernetes());
        let arguments = cluster.arguments();
        let look = |more: &[&str]| {
            let all = [&arguments.each_ref().map(String::as_str)[..], more].concat();
            examine(&namespace, &all)
        };
        let found = tokio::task::block_in_place(|| look(&[]));
        assert_eq!((found.status, found.codes()), (0, vec![]), "{}", found.report);
        let names: Vec<&str> = not_made(&found).iter().map(|(check, _)| *check).collect();
        assert_eq!(names, ["running proxy", "rules as meant", "probe"], "{}", found.report);
        let found = tokio::task::block_in_place(|| look(&["--nodeport-addresses=203.0.113.0/24"]));
        assert_eq!((found.status, found.codes()), (1, vec!["SWY0409"]), "{}", found.report);
        assert!(found.text("SWY0409", "finding").contains("default/kubernetes ask"));

        // The first Services say nothing about all.
        for number in 0..500 {
            let mut other = kubernetes();
            other["metadata"]["name"] = format!("z{number}").into();
            other["spec"] = json!({"clusterIP": "None"});
            cluster.server.store().apply(other);
        }
        let found = tokio::task::block_in_place(|| look(&[]));
        let reason =
            "nothing is wrong with those of the first 500 Services, and the API server has more";
        assert!(not_made(&found).contains(&("node ports", reason)), "{}", found.report);

        // An answer that is not read to its end is one.
        let mut large = kubernetes();
        large["metadata"]["annotations"] = json!({"a": "x".repeat(16 << 20)});
        cluster.server.store().apply(large);
        let found = tokio::task::block_in_place(|| look(&[]));
        assert_eq!((found.status, found.codes()), (0, vec![]), "{}", found.report);
        let reason = "the API server's list of Services has more than 16 MiB";
        assert!(not_made(&found).contains(&("node ports", reason)), "{}", found.report);
        cluster.server.store().apply(kubernetes());

        assert!(cluster.server.store().delete(Resource::Nodes, "", "node-1"));
        let found = tokio::task::block_in_place(|| look(&[]));
        assert_eq!((found.status, found.codes()), (2, vec!["SWY0505"]), "{}", found.report);
        assert_eq!(found.text("SWY0505", "finding"), "The API server has no Node node-1");
        assert!(found.text("SWY0505", "because").contains("that of --hostname-override"));
        // A proxy whose socket does not answer may have another name.
        let proxy = namespace.0.run(|| TcpListener::bind("127.0.0.1:10249")).unwrap().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = proxy.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nnftables").unwrap();
        });
        let found = tokio::task::block_in_place(|| look(&[]));
        assert!(!found.codes().contains(&"SWY0505"), "{}", found.report);
        assert!(not_made(&found).iter().any(|one| one.0 == "API server"), "{}", found.report);

        cluster.server.faults().forbid(Resource::EndpointSlices, true);
        let found = tokio::task::block_in_place(|| look(&[]));
        assert_eq!((found.status, found.codes()), (2, vec!["SWY0502"]), "{}", found.report);
        assert!(
            found.text("SWY0502", "because").starts_with("list EndpointSlice: 403 Forbidden (")
        );
        cluster.server.faults().refuse_connections(true);
        cluster.server.faults().cut_connections();
        let found = tokio::task::block_in_place(|| look(&[]));
        assert_eq!((found.status, found.codes()), (2, vec!["SWY0501"]), "{}", found.report);
    });
}

/// As in a pod, where no argument of the command names a file.
#[test]
fn the_configuration_is_that_of_the_running_proxy() {
    run(|namespace| async move {
        let cluster = Cluster::start().await;
        let place = Place::new();
        let directory = place.program().with_file_name("cluster");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        let kubeconfig = directory.join("kubeconfig");
        cluster.server.write_kubeconfig(&kubeconfig);
        fs::set_permissions(&kubeconfig, Permissions::from_mode(0o644)).unwrap();
        // The reason why nothing is asked of the API server.
        let look = |setpriv: Option<&str>, directory: &Path, kubeconfig: &Path| {
            let sockets = TempDir::new().unwrap();
            chown(sockets.path(), Some(setpriv.map_or(0, |_| 65532)), None).unwrap();
            let socket = format!("--local-socket={}/proxy.sock", sockets.path().display());
            let mut command = match setpriv {
                Some(setpriv) => place.command(&namespace, setpriv),
                None => namespace.switchyard(&[]),
            };
            command.args([&socket, "--hostname-override=node-1", "--conntrack-max-per-core=0"]);
            command.arg(format!("--kubeconfig={}", kubeconfig.display())).current_dir(directory);
            let program = Program::spawn(command);
            namespace.wait(HEALTH, "/readyz", |status, _| status == 200);
            let found = examine(&namespace, &[&socket]);
            program.terminate();
            let concerns = ["configuration of the running proxy", "API server"];
            let reason = not_made(&found).into_iter().find(|(check, _)| concerns.contains(check));
            reason.map(|(_, reason)| reason.to_owned())
        };
        tokio::task::block_in_place(|| {
            assert_eq!(look(None, Path::new("/"), &kubeconfig), None);
            let reason = look(None, &directory, Path::new("kubeconfig")).unwrap();
            assert_eq!(reason, "kubeconfig is in its directory: run this there");
            // It could name a program, which root would run.
            let reason = look(Some(WITH_CAPABILITY), Path::new("/"), &kubeconfig).unwrap();
            assert_eq!(reason, "it is the user 65532's: run this as that user");
        });
    });
}

#[test]
fn a_running_proxy_is_asked_and_its_services_tried() {
    let namespace = node();
    namespace.0.ip("route add 10.96.0.0/16 dev lo").unwrap();
    let manifests = Manifests::new(&format!(
        "{NODE}{}{}",
        service("kubernetes", "clusterIP: 10.96.0.1, ports: [{port: 443}]")
            .replace("namespace: shop", "namespace: default"),
        slice("kubernetes", "8443", "{addresses: [192.0.2.1]}")
            .replace("namespace: shop", "namespace: default"),
    ));
    let flag = manifests.local_socket();
    let _program = manifests.serve(&namespace, &["--proxy-mode=nftables", &flag]);
    let listener = namespace.0.run(|| TcpListener::bind("192.0.2.1:8443")).unwrap().unwrap();
    let found = examine(&namespace, &[&flag]);
    assert_eq!((found.status, found.codes()), (0, vec![]), "{}", found.report);
    let names: Vec<&str> = not_made(&found).iter().map(|(check, _)| *check).collect();
    assert_eq!(names, ["API server", "clock"], "{}", found.report);
    drop(listener);
    let found = examine(&namespace, &[&flag]);
    assert_eq!((found.status, found.codes()), (2, vec!["SWY0408"]), "{}", found.report);
    assert!(found.text("SWY0408", "because").contains("refused"));
    // Elsewhere, the kernel has nothing of what this proxy means.
    let found = examine(&node(), &[&flag]);
    assert_eq!(found.codes(), ["SWY0305"], "{}", found.report);
    // That is no finding of a proxy with changes that it has not synced.
    let path = flag.trim_start_matches("--local-socket=").to_owned();
    let unsettled = format!("{path}-unsettled");
    let flag = format!("--local-socket={unsettled}");
    serve(Path::new(&unsettled), move |asked| {
        let mut stream = UnixStream::connect(&path).unwrap();
        writeln!(stream, "{asked}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.replace("\"isSettled\":true", "\"isSettled\":false")
    });
    let found = examine(&node(), &[&flag]);
    assert_eq!(found.codes(), [""; 0], "{}", found.report);
    let reason = "the running proxy has changes to sync";
    assert!(not_made(&found).contains(&("rules as meant", reason)), "{}", found.report);
}

/// Answers requests at a socket.
fn serve(path: &Path, answer: impl Fn(&str) -> String + Send + 'static) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut asked = String::new();
            stream.read_to_string(&mut asked).unwrap();
            // Who asks nothing waits for no answer.
            let _ = stream.write_all(answer(asked.trim()).as_bytes());
        }
    });
}

#[test]
fn problems_of_the_running_proxy_are_found() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("p.sock");
    serve(&path, |asked| {
        let problems = ["connection tracking is 90 % full", "no news of Node objects for 400 s"];
        match asked {
            "\"status\"" => json!({"answer": {"problems": problems}}).to_string(),
            _ => json!({"error": "no"}).to_string(),
        }
    });
    let found = examine(&node(), &[&format!("--local-socket={}", path.display())]);
    assert_eq!((found.status, found.codes()), (1, vec!["SWY0504"]), "{}", found.report);
    assert_eq!(found.text("SWY0504", "because"), "it says: no news of Node objects for 400 s");
    let refused = "the proxy does not answer: no";
    assert!(not_made(&found).contains(&("rules as meant", refused)), "{}", found.report);
}
