//! Monitors, and engines that run the backend.

use std::{
    thread,
    time::{Duration, Instant},
};

use tokio::time::timeout;

use super::{Subject, cluster, node_config, start};
use crate::{
    engine::Engine,
    objects::{Event, Kind},
    proxier::{ExternalChange, Monitor, Proxier},
    testing::{Stepped, until, web_slice},
};

/// Long enough for everything that should happen.
const PATIENCE: Duration = Duration::from_secs(30);
/// For what should not happen: longer than monitors that poll wait.
const QUIET: Duration = Duration::from_millis(800);

/// Waits for a report of the monitor.
fn reported<P: Proxier>(
    node: &Stepped<P>,
    monitor: &mut dyn Monitor,
    within: Duration,
) -> Option<ExternalChange> {
    let report =
        node.runtime.block_on(async { timeout(within, monitor.externally_changed()).await });
    Some(report.ok()?.expect("the kernel can be watched"))
}

/// The monitor reports what another program changes of the backend's, with the program's name if
/// the kernel has it; and neither the backend's own changes, nor changes of other programs' objects
/// as if they were the backend's.
pub fn the_monitor_reports_changes_of_others_alone<S: Subject>(subject: &S) {
    subject.in_namespace(|| {
        let mut node = start(subject, node_config());
        let mut monitor = node.proxier.monitor().expect("the backend has a monitor");
        node.sync(cluster());
        for endpoints in [&[1, 2][..], &[], &[4, 5, 6]] {
            assert!(node.sync([web_slice(endpoints)]).messages > 0);
        }
        node.clean_up();
        node.full();
        node.sync(cluster());
        assert_eq!(reported(&node, monitor.as_mut(), QUIET), None, "changes of our own");

        subject.change_others();
        let report = reported(&node, monitor.as_mut(), QUIET);
        assert!(matches!(report, None | Some(ExternalChange::Suspected)), "{report:?}");

        for damage in subject.damages().iter().filter(|damage| damage.is_reported) {
            node.full();
            // What was reported before may be reported again.
            while reported(&node, monitor.as_mut(), QUIET).is_some() {}
            damage.inflict();
            let report = reported(&node, monitor.as_mut(), PATIENCE);
            match (report, subject.author()) {
                (Some(ExternalChange::Changed { by: Some(by) }), Some(author)) => {
                    assert!(by.starts_with(author), "{}: {by}", damage.name);
                }
                (Some(_), None) => {}
                (report, author) => panic!("{}: {report:?}, by {author:?}", damage.name),
            }
            node.full();
        }
        node.full();
        while reported(&node, monitor.as_mut(), QUIET).is_some() {}
        node.clean_up();
        assert_eq!(reported(&node, monitor.as_mut(), QUIET), None, "a clean-up of our own");
    });
}

/// Starts an engine, and sends it these events after lists that are empty.
fn start_engine(proxier: impl Proxier + 'static, events: Vec<Event>) -> Engine {
    let engine = Engine::builder(node_config()).start(proxier).expect("a thread");
    let kinds = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];
    let empty = |kind| Event::Replace { kind, objects: Vec::new(), malformed: Vec::new() };
    // As one burst: a sync in between would remove what is there.
    let mut lists: Vec<Event> = kinds.map(empty).into();
    for event in events {
        let Event::Apply(object) = event else { panic!("only objects: {event:?}") };
        let of_kind = lists.iter_mut().find_map(|list| match list {
            Event::Replace { kind, objects, .. } if *kind == object.key().kind => Some(objects),
            _ => None,
        });
        of_kind.expect("a list of each kind").push(object);
    }
    for list in lists {
        engine.inputs().blocking_send(list.into()).expect("the engine runs");
    }
    engine
}

/// A running engine restores what another program damages, without being asked.
pub fn an_engine_repairs_what_others_damage<S: Subject>(subject: &S) {
    subject.in_namespace(|| {
        subject.refuse(0..0);
        subject.add_others();
        // What the engine should program, in the words of the kernel's tools.
        let whole = subject.in_namespace(|| {
            start(subject, node_config()).sync(cluster());
            subject.listing()
        });

        let engine = start_engine(subject.open(), cluster());
        until("the engine programs", || subject.listing() == whole);
        subject.change_others();
        for damage in subject.damages().iter().filter(|damage| damage.is_reported) {
            let start = Instant::now();
            damage.inflict();
            until(&damage.name, || subject.listing() == whole);
            println!("{} is repaired after {:?}", damage.name, start.elapsed());
            // The engine waits between resyncs.
            thread::sleep(Duration::from_secs(1));
        }
        engine.stop().expect("nothing panics");
    });
}

/// A backend that an engine returns serves the next engine, in the same process: what changes
/// in the meantime is programmed, and nothing is lost in between.
pub fn a_backend_serves_one_engine_after_another<S: Subject>(subject: &S) {
    subject.in_namespace(|| {
        subject.refuse(0..0);
        subject.add_others();
        let wanted = |events: Vec<Event>| {
            subject.in_namespace(|| {
                subject.add_others();
                let mut node = Stepped::new(node_config(), subject.open());
                node.sync(events);
                subject.dump()
            })
        };
        let holds = |dump: &str| {
            let have = subject.dump();
            dump.lines().all(|line| have.lines().any(|had| had == line))
                && have
                    .lines()
                    .all(|line| subject.may_remain(line) || dump.lines().any(|l| l == line))
        };
        let mut changed = cluster();
        changed.push(web_slice(&[1, 9]));
        let (first, second) = (wanted(cluster()), wanted(changed.clone()));
        assert_ne!(first, second);

        let mut proxier: Box<dyn Proxier> = Box::new(subject.open());
        for round in 0..2 {
            let engine = start_engine(proxier, cluster());
            until("the engine programs", || holds(&first));
            let stopped = engine.stop().expect("nothing panics");
            assert!(holds(&first), "the kernel is left as it is: {round}");

            // The slice of `web` has one endpoint less, and another one.
            let engine = start_engine(stopped, cluster());
            engine.inputs().blocking_send(web_slice(&[1, 9]).into()).expect("it runs");
            until("the next engine programs", || holds(&second));
            proxier = engine.stop().expect("nothing panics");
        }
    });
}
