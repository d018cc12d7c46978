//! The observer that records Events about what the mode cannot do: about the Services that ask for
//! it, and about the Node if its default asks for it, or if it is not as the mode needs it.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use switchyard_core::{
    model::ServiceName,
    objects::Kind,
    runner::{EngineEvent, Observer},
    track::{Problem, Reason},
};

use super::{Event, EventTarget, Recorder};

/// The most Events about Services within [`PERIOD`]: after a change of the mode, all Services of a
/// cluster may ask for what it cannot do. The log and the metrics have all of them.
const MOST: u32 = 64;
const PERIOD: Duration = Duration::from_secs(600);

/// Records Events about what the mode cannot do.
pub struct UnsupportedEvents {
    recorder: Recorder,
    node: String,
    /// The start of the period, and the number of Events in it.
    recent: Mutex<Option<(Instant, u32)>>,
}

impl UnsupportedEvents {
    /// Returns the observer of an engine on the node of this name.
    pub fn new(recorder: Recorder, node: String) -> Self {
        Self { recorder, node, recent: Mutex::default() }
    }

    /// Whether there may be another Event about a Service.
    fn is_within_limit(&self, now: Instant) -> bool {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, count) = match *recent {
            Some((start, count)) if now.duration_since(start) < PERIOD => (start, count),
            _ => (now, 0),
        };
        *recent = Some((start, count.saturating_add(1)));
        count < MOST
    }
}

impl Observer for UnsupportedEvents {
    fn on_event(&self, event: &EngineEvent<'_>) {
        match event {
            EngineEvent::Rejected(problem) => self.rejected(problem),
            EngineEvent::DefaultAlgorithmReplaced { mode, asked, used } => {
                let note = format!(
                    "--lb-algorithm={asked} cannot be programmed in {mode} mode; connections are spread by \
                     `{used}` instead"
                );
                self.recorder.record(Event::algorithm_unsupported(EventTarget::Node, note));
            }
            EngineEvent::Synced(outcome) => self.warnings(&outcome.report.warnings),
            _ => {}
        }
    }
}

impl UnsupportedEvents {
    fn warnings(&self, warnings: &[String]) {
        for warning in warnings {
            let note = format!("node {}: {warning}", self.node);
            self.recorder.record(Event::node_unprepared(note));
        }
    }

    fn rejected(&self, problem: &Problem) {
        let object = &problem.object;
        let about = |note: String| {
            let service =
                || EventTarget::Service(ServiceName::new(&object.namespace, &object.name));
            match (problem.reason, object.kind) {
                (Reason::Unsupported, Kind::Service) => {
                    Some(Event::algorithm_unsupported(service(), note))
                }
                (Reason::Refused, Kind::Service) => Some(Event::service_refused(service(), note)),
                (Reason::Refused, _) => Some(Event::service_refused(EventTarget::Node, note)),
                _ => None,
            }
        };
        let field = match problem.field.as_str() {
            "" => String::new(),
            field => format!("{field}: "),
        };
        let note = format!("node {}: {field}{}", self.node, problem.message);
        if let Some(event) = about(note)
            && self.is_within_limit(Instant::now())
        {
            self.recorder.record(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::objects::ObjectKey;

    use super::*;
    use crate::node_events::{Message, recorder};

    fn recorded(queue: &mut super::super::EventQueue) -> Vec<Event> {
        let next = || match queue.0.try_recv() {
            Ok(Message::Event(event, _)) => Some(event),
            _ => None,
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn what_a_service_does_not_get_is_an_event() {
        let (recorder, mut queue) = recorder();
        let events = UnsupportedEvents::new(recorder, "node-1".to_owned());
        let object =
            ObjectKey { kind: Kind::Service, namespace: "shop".to_owned(), name: "web".to_owned() };
        let mut problem = Problem {
            object,
            field: "metadata.annotations[switchyard/lb-algorithm]".to_owned(),
            message: "`maglev` cannot".to_owned(),
            reason: Reason::Invalid,
        };
        events.rejected(&problem);
        assert_eq!(recorded(&mut queue), []);
        problem.reason = Reason::Unsupported;
        events.rejected(&problem);
        let found = recorded(&mut queue);
        let [event] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(event.regarding, EventTarget::Service(ServiceName::new("shop", "web")));
        assert_eq!((event.reason, event.is_warning), ("LbAlgorithmUnsupported", true));
        assert_eq!(
            event.note,
            "node node-1: metadata.annotations[switchyard/lb-algorithm]: `maglev` cannot"
        );

        problem.reason = Reason::Refused;
        events.rejected(&problem);
        assert_eq!(recorded(&mut queue)[0].reason, "ServicePortRefused");

        problem.reason = Reason::Unsupported;
        for _ in 0..2 * MOST {
            events.rejected(&problem);
        }
        assert_eq!(recorded(&mut queue).len(), MOST as usize - 2, "there is a limit");
        assert!(events.is_within_limit(Instant::now() + PERIOD), "until the period is over");
    }

    #[test]
    fn a_node_that_is_not_as_the_mode_needs_it_is_an_event() {
        let (recorder, mut queue) = recorder();
        let events = UnsupportedEvents::new(recorder, "node-1".to_owned());
        let problem = "cannot set /proc/sys/net/ipv4/ip_forward to 1".to_owned();
        events.warnings(&[problem]);
        let found = recorded(&mut queue);
        let [event] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((&event.regarding, event.reason), (&EventTarget::Node, "NodeUnprepared"));
        assert_eq!(event.note, "node node-1: cannot set /proc/sys/net/ipv4/ip_forward to 1");
    }
}
