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
        self.send(list(Kind::EndpointSlice, services.map(endpoints))).await;
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
    // and to questions that wait for lists; others are answered before the next part.
    running.list_slices(1..1).await;
    running.list_slices(6..9).await;
    running.list_slices(1..4).await;
    let (sender, mut answers) = mpsc::unbounded_channel();
    let count = || {
        let sender = sender.clone();
        Query::new(move |tracker: &Tracker| {
            let ports = tracker.state().service_ports.values();
            sender.send(ports.filter(|port| !port.cluster.is_empty()).count()).unwrap();
        })
    };
    for query in [count().after_lists(), count()] {
        running.send(Input::Query(query)).await;
    }
    assert_eq!([answers.recv().await, answers.recv().await], [Some(5), Some(3)]);
    pass(2_000).await;
    expected.extend([part(7_150, "ns/s4"), part(7_250, "ns/s5")]);
    running.apply(&[endpoints(8)]).await;
    pass(2_000).await;
    expected.push(part(9_250, "ns/s8"));
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
    running.send(list(Kind::EndpointSlice, [endpoints(3), renamed(2), renamed(1)])).await;
    pass(2_000).await;
    let parts = running.parts();
    let ports: Vec<_> = parts[synced..].iter().map(|(_, ports)| ports.as_str()).collect();
    // Each once: the removal of a slice and its successor are one change.
    assert_eq!(ports, ["ns/s1", "ns/s2", "ns/s4", "ns/s5"]);
}

impl Running {
    /// Lists ten Services, each with a slice, sends events, and returns what the backend was asked
    /// since.
    async fn after(services: &[Builder], slices: &[Builder], events: &[Event]) -> Vec<Asked> {
        let running = start_with_services(100).await;
        running.list_slices(0..10).await;
        pass(4_000).await;
        let synced = running.asked().len();
        for (kind, builders) in [(Kind::Service, services), (Kind::EndpointSlice, slices)] {
            if !builders.is_empty() {
                running.send(list(kind, builders)).await;
            }
        }
        pass(50).await;
        for event in events {
            running.send(event.clone()).await;
        }
        pass(4_000).await;
        // What is served before and after is served in between.
        let served = running.log.lock().unwrap().served[synced - 1..].to_vec();
        let (first, last) = (&served[0], &served[served.len() - 1]);
        for (part, served) in served.iter().enumerate() {
            let missing: Vec<_> =
                first.intersection(last).filter(|at| !served.contains(*at)).collect();
            assert!(missing.is_empty(), "{missing:?} in part {part}");
        }
        running.asked()[synced..].to_vec()
    }
}

fn ports(asked: &[Asked]) -> Vec<String> {
    asked.iter().map(|asked| asked.ports.join(" ")).collect()
}

/// The slices of ten Services, all changed.
fn changed_slices() -> Vec<Builder> {
    (0..10).map(|n| endpoints(n).endpoint(endpoint(&format!("10.1.2.{n}"), NODE))).collect()
}

#[tokio::test(start_paused = true)]
async fn what_arrives_about_a_slice_comes_with_the_rest_of_its_service() {
    let mut slices = changed_slices();
    // Another slice takes the place of the one of s9, which the list still has.
    let other = slice("s9", "2").port("", "TCP", 80).endpoint(endpoint("10.1.1.9", NODE));
    slices.push(other);
    let asked = Running::after(&[], &slices, &[endpoints(9).delete()]).await;
    assert_eq!(ports(&asked)[..2], ["ns/s0 ns/s1", "ns/s9"].map(str::to_owned));
}

#[tokio::test(start_paused = true)]
async fn a_slice_that_moves_leaves_no_service_without_endpoints() {
    let mut slices = changed_slices();
    slices[9] = slices[9].clone().label("kubernetes.io/service-name", "s0");
    let other = slice("s9", "2").port("", "TCP", 80).endpoint(endpoint("10.1.1.9", NODE));
    slices.push(other);
    let asked = Running::after(&[], &slices, &[]).await;
    assert_eq!(asked.len(), 1, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_handed_on_is_served_at_all_times() {
    let with = |n: u8, field: &str, value: &str| web(n).set(field, vec![value]);
    // Those of s1 and s8 are exchanged.
    let mut services: Vec<_> = (0..10).map(web).collect();
    services[1] = services[1].clone().set("spec.clusterIP", "10.0.0.8");
    services[1] = services[1].clone().set("spec.clusterIPs", vec!["10.0.0.8"]);
    services[8] = services[8].clone().set("spec.clusterIP", "10.0.0.1");
    services[8] = services[8].clone().set("spec.clusterIPs", vec!["10.0.0.1"]);
    assert_eq!(Running::after(&services, &[], &[]).await.len(), 1);
    // One that is deleted leaves its address to another.
    let services = (0..9).map(|n| match n {
        0 => with(0, "spec.externalIPs", "10.0.0.9"),
        n => web(n),
    });
    let services: Vec<_> = services.collect();
    assert_eq!(Running::after(&services, &[], &[]).await.len(), 1);
    // The other one is announced while the list waits.
    let services: Vec<_> =
        (1..9).map(|n| with(n, "spec.externalIPs", &format!("192.0.2.{n}"))).collect();
    let taken = with(0, "spec.externalIPs", "10.0.0.9");
    let asked = Running::after(&services, &[], &[web(9).delete(), taken.apply()]).await;
    assert_eq!(asked.len(), 3, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn many_removals_are_a_long_list() {
    let slices = &changed_slices()[..1];
    let asked = Running::after(&[], slices, &[]).await;
    assert_eq!(ports(&asked)[..2], ["ns/s0 ns/s1", "ns/s2 ns/s3"].map(str::to_owned));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_malformed_later_has_the_state_of_the_list() {
    let object = endpoints(9).key();
    let (kind, message) = (Kind::EndpointSlice, "bad".to_owned());
    let objects = (0..9).map(|n| endpoints(n).object()).collect();
    let malformed = vec![object.clone()];
    let list = Event::Replace { kind, objects, malformed };
    let bad = Event::Malformed { object, field: "endpoints".to_owned(), message };
    let asked = Running::after(&[], &changed_slices(), &[list, bad]).await;
    assert!(ports(&asked).concat().contains("ns/s9"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_made_again_is_not_removed_by_the_list_that_lacks_it() {
    // The removal of an object that has a problem is taken out like any other.
    let misspelt = web(9).annotation("switchyard/slow-start", "soon");
    let events = [misspelt.apply(), list(Kind::Service, (0..9).map(web)), web(9).apply()];
    let asked = Running::after(&[], &[], &events).await;
    assert_eq!(ports(&asked), [""; 0]);
}
