//! UDP flows whose endpoint goes: they must not be stuck to it.

use std::{
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use packet_rig::http::metric_values;

use crate::{
    manifests::{Manifests, service, slice},
    namespace::{METRICS, Namespace, until},
};

fn objects(endpoint: &str) -> String {
    let ports = "clusterIP: 10.96.0.53, ports: [{port: 53, protocol: UDP}]";
    service("dns", ports)
        + &slice("dns", "5353, protocol: UDP", &format!("{{addresses: [{endpoint}]}}"))
}

/// A socket in the namespace that does not wait for long.
fn socket(namespace: &Namespace, at: &str) -> UdpSocket {
    let at: SocketAddr = at.parse().unwrap();
    let socket = namespace.0.run(|| UdpSocket::bind(at)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    socket
}

/// Sends on one flow until the server has it.
fn reach(client: &UdpSocket, server: &UdpSocket) {
    until("the flow arrives", || {
        client.send_to(b"?", "10.96.0.53:53").unwrap();
        server.recv(&mut [0; 1]).is_ok()
    });
}

#[test]
fn a_flow_goes_where_an_endpoint_is() {
    let namespace = Namespace::new();
    namespace.0.ip("addr add 192.0.2.2/32 dev lo\nroute add 10.96.0.0/16 dev lo").unwrap();
    let [one, two] = ["192.0.2.1:5353", "192.0.2.2:5353"].map(|at| socket(&namespace, at));
    let client = socket(&namespace, "192.0.2.1:40000");

    let manifests = Manifests::new(&objects("192.0.2.1"));
    let program = manifests.start(&namespace, &["-v=6", "--conntrack-services-period=10s"]);
    namespace.wait_for_service_ports(1);
    reach(&client, &one);
    manifests.write("all", &objects("192.0.2.2"));
    // The same source port all the time: without help from us the flow would live for ever.
    reach(&client, &two);

    let of_ipv4 = |name| format!("kubeproxy_conntrack_reconciler_{name}{{ip_family=\"IPv4\"}}");
    let deleted = of_ipv4("deleted_entries_total");
    let duration = of_ipv4("sync_duration_seconds_count");
    namespace.wait(METRICS, "/metrics", |_, text| {
        metric_values(text, &deleted)[0] >= 1.0 && metric_values(text, &duration)[0] >= 2.0
    });
    let of_service = "switchyard_conntrack_service_entries{namespace=\"shop\",service=\"dns\"}";
    let text =
        namespace.wait(METRICS, "/metrics", |_, text| metric_values(text, of_service) == [1.0]);
    let elsewhere = metric_values(&text, "switchyard_conntrack_other_entries{to=\"elsewhere\"}")[0];
    let all = metric_values(&text, "switchyard_conntrack_entries")[0];
    assert!(elsewhere >= 1.0 && all >= 2.0, "the scrapes themselves: {elsewhere} of {all}");
    assert_eq!(metric_values(&text, "switchyard_conntrack_stuck_connections"), [0.0]);
    let (_, log) = program.terminate();
    let deleted = log.lines().find(|line| line.contains("\"Deleting conntrack entry\"")).unwrap();
    assert!(deleted.starts_with('I') && deleted.contains("ipFamily=\"IPv4\""), "{deleted}");
    let flow = "source=\"192.0.2.1:40000\" destination=\"10.96.0.53:53\" \
                answered_by=\"192.0.2.1:5353\"";
    assert!(deleted.contains(flow), "{deleted}");
    let complains = |line: &&str| !line.starts_with('I') && line.contains("conntrack");
    assert_eq!(log.lines().find(complains), None, "nothing to complain about");
}
