//! Starting, restarting, ending, and not being waited for.

use std::{sync::mpsc, thread, time::Duration};

use switchyard_core::{
    config::NodeConfig,
    testing::{Builder, NODE, endpoint, service, slice},
    track::Tracker,
};
use switchyard_kernel::conntrack::Reconciler;

use super::{
    support::{Cluster, PATIENCE, deleted, dns, in_namespace},
    table::{Flow, add, assert_entries, flow, udp},
};

fn pod(ip: &str) -> Builder {
    slice("dns", "a").port("", "UDP", 5353).endpoint(endpoint(ip, "node-1"))
}

#[test]
fn a_restart_removes_only_what_contradicts_the_state() {
    in_namespace(|| {
        let many: Vec<[Builder; 2]> = (0..100)
            .map(|i| {
                let name = format!("s{i}");
                let slice = slice(&name, "a").port("", "UDP", 1000 + i);
                [
                    service(&name, &format!("10.0.1.{i}")).port("", "UDP", 1000 + i),
                    slice.endpoint(endpoint(&format!("10.1.1.{i}"), "node-1")),
                ]
            })
            .collect();
        let mut cluster = Cluster::with(many.iter().flatten());
        let flows = |client: &str, pods: &str| -> Vec<Flow> {
            let flow = |i| {
                let port = 1000 + i;
                udp(client, &format!("10.0.1.{i}:{port}"), &format!("10.1.{pods}.{i}:{port}"))
            };
            (0..100).map(flow).collect()
        };
        let mut kept = flows("10.1.9.9:4000", "1");
        kept.push(udp("10.1.9.9:4000", "10.0.200.1:1000", "10.1.2.1:1000"));
        kept.push(flow("TCP", "10.1.9.9:4001", "10.0.1.1:1001", "10.1.2.1:1001"));
        add(&kept);
        add(&flows("10.1.9.9:4001", "2"));
        cluster.restart();
        assert_eq!(deleted(&cluster.apply([])), 100);
        assert_entries(&kept);
        // And a full sync later looks at nothing again.
        add(&flows("10.1.9.9:4002", "3")[..1]);
        assert_eq!(cluster.apply([]), []);
        // Unless rules were missing.
        assert_eq!(deleted(&cluster.repair()), 1);
        assert_entries(&kept);
        assert_eq!(cluster.apply([]), []);
    });
}

#[test]
fn entries_of_other_zones_and_namespaces_stay() {
    in_namespace(|| {
        let stale = udp("10.1.9.9:4000", "10.0.0.10:53", "10.1.0.1:5353");
        let zoned = Flow { zone: 7, ..stale };
        add(&[stale, zoned]);
        in_namespace(|| {
            add(&[stale]);
            let mut cluster = Cluster::with([&dns(), &pod("10.1.0.2")]);
            assert_entries(&[]);
            cluster.delete([&dns()]);
        });
        assert_entries(&[stale, zoned]);
        Cluster::with([&dns(), &pod("10.1.0.2")]);
        assert_entries(&[zoned]);
    });
}

#[test]
fn more_flows_than_fit_into_one_batch_go_too() {
    in_namespace(|| {
        let mut cluster = Cluster::with([&dns(), &pod("10.1.0.1")]);
        let to = |by: &str| -> Vec<Flow> {
            let flow = |i| udp(&format!("10.1.{}.{}:4000", i / 250, i % 250), "10.0.0.10:53", by);
            (0..2000).map(flow).collect()
        };
        add(&to("10.1.0.1:5353"));
        assert_eq!(deleted(&cluster.apply([&pod("10.1.0.2")])), 2000);
        assert_entries(&[]);
    });
}

#[test]
fn nobody_waits_for_the_worker_and_a_drop_ends_it() {
    in_namespace(|| {
        // The worker stands still in its report, for as long as the test likes.
        let (reporting, reported) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let report = move |report| {
            reporting.send(report).unwrap();
            // Ends when the other side is gone, too.
            let _ = released.recv();
        };
        let reconciler = Reconciler::start(report).unwrap();
        let mut tracker = Tracker::new(NodeConfig::new(NODE));
        let mut sync = |builders: &[Builder]| {
            for builder in builders {
                tracker.apply(builder.apply());
            }
            tracker.resolve();
            reconciler.synced(&tracker.transition());
            tracker.mark_synced();
        };
        add(&[udp("10.1.9.9:4000", "10.0.0.10:53", "10.1.0.1:5353")]);
        sync(&[dns(), pod("10.1.0.1")]);
        let first = reported.recv_timeout(PATIENCE).unwrap();
        assert_eq!((first.scanned, first.deleted), (1, 0));

        // It stands. A thousand changes are taken without it: this would never end otherwise.
        for i in 0..1000 {
            sync(&[pod(&format!("10.1.2.{}", i % 200))]);
        }
        sync(&[pod("10.1.0.1")]);
        assert!(!reconciler.wait_idle(Duration::ZERO));

        // It goes on: one look for them all. The endpoint is back, so its flow stays.
        release.send(()).unwrap();
        let second = reported.recv_timeout(PATIENCE).unwrap();
        assert_eq!((second.scanned, second.deleted), (1, 0));
        release.send(()).unwrap();
        assert!(reconciler.wait_idle(PATIENCE));
        assert!(reported.try_recv().is_err());

        // Nor does its end wait: the owner of the report may be who ends it.
        sync(&[pod("10.1.0.2")]);
        reported.recv_timeout(PATIENCE).unwrap();
        drop(reconciler);
        release.send(()).unwrap();
        // The worker's end of the channel goes with the worker.
        let end = reported.recv_timeout(PATIENCE);
        assert_eq!(end, Err(mpsc::RecvTimeoutError::Disconnected));
    });
}

#[test]
fn what_the_kernel_refuses_is_repeated_and_kept() {
    in_namespace(|| {
        let stale = udp("10.1.9.9:4000", "10.0.0.10:53", "10.1.0.1:5353");
        add(&[stale]);
        let mut cluster = thread::scope(|scope| {
            // The worker has the privileges of the thread that starts it.
            let start = || {
                // SAFETY: no pointers are passed; the bare system call changes only this thread.
                let result = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
                assert_eq!(result, 0);
                Cluster::new()
            };
            scope.spawn(start).join().unwrap()
        });
        cluster.change(&[dns(), pod("10.1.0.2")], []);
        for _ in 0..3 {
            let report = cluster.report();
            assert_eq!((report.complete, report.deleted), (false, 0));
        }
        assert!(!cluster.is_idle());
        assert_entries(&[stale]);
        // A delay is no reason to wait when it is to end.
        cluster.restart();
        assert_eq!(deleted(&cluster.apply([])), 1);
        assert_entries(&[]);
    });
}
