//! Behaviour of syncs while the kernel refuses what one Service port needs, or a whole family:
//! everything else is programmed.

use super::{Subject, assert_as_from_nothing, cluster, node_config, start};
use crate::{
    model::{IpFamily, ServicePortId},
    objects::Event,
    proxier::{Proxier, SyncReport},
    testing::{Stepped, service, web_slice},
};

/// A part of the state that the kernel is made to refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusedPart {
    /// The objects that a Service port needs in its family.
    Port(ServicePortId),
    /// Everything of a family.
    Family(IpFamily),
}

impl RefusedPart {
    /// Its family, and the comment of what a Service port needs.
    pub fn names(&self) -> (IpFamily, Option<String>) {
        match self {
            Self::Port(id) => (id.family, Some(id.name.to_string())),
            Self::Family(family) => (*family, None),
        }
    }
}

/// The time at which something is refused.
#[derive(Clone, Copy, Debug)]
enum Occasion {
    FirstSync,
    Change,
    Repair,
}

/// The UDP port of `dual`, which is renumbered in every sync that is to be refused.
fn dual(port: i64) -> Event {
    service("dual", "10.96.0.4,fd00::4").port("dns", "UDP", port).apply()
}

/// A Service port is refused in one family, in the middle of a sync: it is left out in that family
/// and named, all else is programmed, and it is programmed once the kernel takes it.
pub fn a_refused_port_costs_nothing_else<S: Subject>(subject: &S) {
    for occasion in [Occasion::FirstSync, Occasion::Change, Occasion::Repair] {
        subject.in_namespace(|| {
            let what = format!("{occasion:?}");
            let mut proxy = start(subject, node_config());
            let id = begin(subject, &mut proxy, occasion);
            subject.refuse_part(Some(&RefusedPart::Port(id.clone())));
            let report = proxy.try_sync().expect("all else is programmed");
            assert_left_out(&report, &id, &what);
            assert!(!proxy.tracker.state().service_ports.contains_key(&id), "{what}");
            assert_as_from_nothing(subject, proxy.tracker.state(), &what);

            // Others come and go in the meantime, and the Service itself changes.
            let more = service("more", "10.96.0.6").port("http", "TCP", 80);
            let report = proxy.sync([web_slice(&[2, 3]), more.apply(), dual(55)]);
            assert_left_out(&report, &id, &what);
            assert_as_from_nothing(subject, proxy.tracker.state(), &what);

            subject.refuse_part(None);
            let report = proxy.sync([]);
            assert_eq!(report.degraded, [], "{what}");
            assert!(proxy.tracker.state().service_ports.contains_key(&id), "{what}");
            assert_as_from_nothing(subject, proxy.tracker.state(), &what);
            let report = proxy.full();
            assert!(report.drift.is_none(), "{what}: {report:?}");
        });
    }
}

/// A family is refused altogether: the other one is programmed, now and when something changes.
pub fn a_refused_family_costs_the_other_nothing<S: Subject>(subject: &S) {
    for occasion in [Occasion::FirstSync, Occasion::Change, Occasion::Repair] {
        subject.in_namespace(|| {
            let what = format!("{occasion:?}");
            let mut proxy = start(subject, node_config());
            begin(subject, &mut proxy, occasion);
            let address = "10.96.0.6";
            subject.refuse_part(Some(&RefusedPart::Family(IpFamily::V6)));
            proxy.try_sync().expect("the other family is programmed");
            assert!(subject.listing().contains("10.96.0.4"), "{what}: {}", subject.listing());
            let more = service("more", address).port("http", "TCP", 80);
            proxy.sync([more.apply(), dual(55)]);
            assert!(subject.listing().contains(address), "{what}: {}", subject.listing());
            subject.refuse_part(None);
            let report = proxy.sync([]);
            assert!(report.drift.is_none(), "{what}: {report:?}");
            assert_as_from_nothing(subject, proxy.tracker.state(), &what);
            let report = proxy.full();
            assert!(report.drift.is_none(), "{what}: {report:?}");
        });
    }
}

/// Takes in what is to be synced next. Returns the Service port of that sync that is to be refused.
fn begin<S: Subject>(
    subject: &S,
    proxy: &mut Stepped<S::Backend>,
    occasion: Occasion,
) -> ServicePortId {
    match occasion {
        Occasion::FirstSync => proxy.apply(cluster()),
        Occasion::Change => {
            proxy.sync(cluster());
            proxy.apply([dual(54), web_slice(&[2])]);
        }
        Occasion::Repair => {
            proxy.sync(cluster());
            // Another program removes everything.
            let mut other = subject.open();
            proxy.runtime.block_on(other.clean_up()).expect("a clean-up");
            proxy.apply([dual(54)]);
            proxy.tracker.request_resync();
        }
    }
    let ports = &proxy.tracker.state().service_ports;
    let is_wanted =
        |id: &&ServicePortId| id.family == IpFamily::V4 && id.name.service.name() == "dual";
    ports.keys().find(is_wanted).expect("the port of dual").clone()
}

#[track_caller]
fn assert_left_out(report: &SyncReport, id: &ServicePortId, what: &str) {
    let [skipped] = report.degraded.as_slice() else { panic!("{what}: {report:?}") };
    assert_eq!(&skipped.port, id, "{what}");
    assert!(!skipped.reason.is_empty(), "{what}");
}
