//! Lists that come after the first sync, and are longer than the backend takes at once.

use switchyard_core::runner::Query;

use super::*;

/// A runner that knows ten Services, and lists of at most two objects are not divided.
async fn start_with_services(takes: u64) -> Running {
    let running = start_with(SECOND, |log, _| {
        log.takes = Duration::from_millis(takes);
        log.most_listed = Some(2);
    });
    running.list(&(0..10).map(web).collect::<Vec<_>>()).await;
    pass(5_000).await;
    running
}

fn endpoints(n: u8) -> Builder {
    let slice = slice(&format!("s{n}"), "1").port("", "TCP", 80);
    slice.endpoint(endpoint(&format!("10.1.0.{n}"), NODE))
}

impl Running {
    async fn list_slices(&self, services: std::ops::Range<u8>) {
        let objects = services.map(|n| endpoints(n).object()).collect();
        let kind = Kind::EndpointSlice;
        self.send(Event::Replace { kind, objects, malformed: Vec::new() }).await;
    }

    /// The Service ports of syncs but the first one, and when.
    fn parts(&self) -> Vec<(u128, String)> {
        self.asked()[1..].iter().map(|asked| (asked.at, asked.ports.join(" "))).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_removal_is_synced_before_the_rest_of_a_list() {
    let running = start_with_services(100).await;
    running.list_slices(1..6).await;
    pass(150).await;
    running.send(web(9).delete()).await;
    running.apply(&[endpoints(5)]).await;
    pass(2_000).await;
    let part = |at: u128, ports: &str| (at, ports.to_owned());
    let mut expected = vec![
        part(5_000, "ns/s1 ns/s2"),
        part(5_100, "ns/s3 ns/s4"),
        // What the list has of s5 is as old as the list.
        part(5_200, "ns/s5 ns/s9"),
        // The end of the list, for observers.
        part(5_300, ""),
    ];
    assert_eq!(running.parts(), expected);
    let latencies: Vec<_> = running.told().iter().filter_map(|told| told.latency).collect();
    assert_eq!(latencies[1..], [100, 200, 100, 400].map(Duration::from_millis));
    // A newer list replaces what is left of an older one. All parts are as one sync to the pace,
    // and to questions.
    running.list_slices(1..1).await;
    running.list_slices(6..9).await;
    running.list_slices(1..4).await;
    let (sender, answer) = tokio::sync::oneshot::channel();
    let count = move |tracker: &Tracker| {
        let ports = tracker.state().service_ports.values();
        sender.send(ports.filter(|port| !port.cluster.is_empty()).count()).unwrap();
    };
    running.inputs.send(Input::Query(Query::new(count))).await.unwrap();
    assert_eq!(answer.await.unwrap(), 3);
    pass(2_000).await;
    expected.extend([
        part(7_150, "ns/s1 ns/s2 ns/s3 ns/s4 ns/s5"),
        part(7_250, "ns/s1 ns/s2"),
        part(7_350, "ns/s3"),
    ]);
    running.apply(&[endpoints(8)]).await;
    pass(2_000).await;
    expected.push(part(9_350, "ns/s8"));
    assert_eq!(running.parts(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_list_does_not_wait_for_syncs_that_fail() {
    let running = start_with_services(0).await;
    running.log.lock().unwrap().outcomes = vec![false].into();
    running.list_slices(1..6).await;
    pass(10_000).await;
    let parts = running.parts();
    assert_eq!(parts[0].1, "ns/s1 ns/s2");
    assert_eq!(parts[1].1, "ns/s1 ns/s2 ns/s3 ns/s4 ns/s5", "{parts:?}");
    assert_eq!(parts.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_service_has_endpoints_while_a_list_replaces_its_slices() {
    let running = start_with_services(100).await;
    running.list_slices(1..6).await;
    pass(2_000).await;
    let synced = running.parts().len();
    // The slices of s1 and s2 have other names now; those of s4 and s5 are gone, and one is left.
    let renamed = |n: u8| {
        let slice = slice(&format!("s{n}"), "2").port("", "TCP", 80);
        slice.endpoint(endpoint(&format!("10.1.1.{n}"), NODE))
    };
    let objects = [endpoints(3), renamed(2), renamed(1)].map(|slice| slice.object()).into();
    let kind = Kind::EndpointSlice;
    running.send(Event::Replace { kind, objects, malformed: Vec::new() }).await;
    pass(2_000).await;
    let parts = running.parts();
    let ports: Vec<_> = parts[synced..].iter().map(|(_, ports)| ports.as_str()).collect();
    // Each once: the removal of a slice and its successor are one change.
    assert_eq!(ports, ["ns/s1", "ns/s2", "ns/s4", "ns/s5"]);
}
