//! Readers of Kubernetes objects: what the API server sends, manifests, and annotations.

use std::path::Path;

use k8s_openapi::api::{
    core::v1 as core, discovery::v1 as discovery, networking::v1 as networking,
};
use switchyard_core::{
    config::NodeConfig,
    objects::{Event, Kind, Object},
    testing::{
        Builder, NODE, assert_invariants, endpoint, final_objects, node, resolve_afresh, service,
        slice,
    },
    track::Tracker,
};
use switchyard_sources::kube::testing::decode_item;

/// Objects that can be decoded with all fields of the API are decoded with those that a proxy
/// reads, and are the same.
pub fn decoded_as_in_full(text: &str) {
    for kind in Kind::ALL {
        let (key, lean) = decode_item(kind, text);
        let Some(full) = in_full(kind, text) else { continue };
        let lean = match lean {
            Ok(lean) => lean,
            // Those of k8s-openapi take the last.
            Err([_, message]) if message.contains("duplicate field") => continue,
            Err(why) => panic!("{kind} {key:?}: {why:?}"),
        };
        assert_eq!(lean, full);
        assert_eq!(key, Some(full.key()).filter(|key| !key.name.is_empty()));
    }
}

fn in_full(kind: Kind, text: &str) -> Option<Object> {
    match kind {
        Kind::Service => serde_json::from_str::<core::Service>(text).ok().map(Object::from),
        Kind::EndpointSlice => {
            serde_json::from_str::<discovery::EndpointSlice>(text).ok().map(Object::from)
        }
        Kind::Node => serde_json::from_str::<core::Node>(text).ok().map(Object::from),
        Kind::ServiceCidr => {
            serde_json::from_str::<networking::ServiceCIDR>(text).ok().map(Object::from)
        }
    }
}

/// A file of manifests, as YAML and as JSON. Its objects make a state like any other's. One that is
/// an object alone is decoded alike by itself.
pub fn manifests(text: &str) {
    for file in ["a.yaml", "a.json"] {
        let (objects, problems) = switchyard_sources::manifests::read_text(Path::new(file), text);
        problems.iter().for_each(|problem| drop(problem.to_string()));
        track(objects);
    }
    if let Ok(Some(Event::Apply(object))) = switchyard_sources::manifests::decode_object(text) {
        let (objects, _) = switchyard_sources::manifests::read_text(Path::new("a.json"), text);
        assert_eq!(objects, [object]);
    }
}

/// A Service, an EndpointSlice and a Node with the annotations of these lines, `name: value`.
pub fn annotated(text: &str) {
    let with = |object: Builder| {
        let pairs = text.lines().filter_map(|line| line.split_once(": "));
        pairs.fold(object, |object, (name, value)| object.annotation(name, value))
    };
    let service = with(service("web", "10.0.0.1").port("http", "TCP", 80));
    let pods = ["10.1.0.1", "10.1.0.2"].map(|ip| endpoint(ip, NODE));
    let empty = slice("web", "a").port("http", "TCP", 8080);
    let slice = pods.into_iter().fold(empty, Builder::endpoint);
    let objects = [service, with(slice), with(node(NODE, "192.0.2.1"))];
    track(objects.map(|object| object.object()).to_vec());
}

/// Tracks objects one by one, in a state that keeps what states promise and is that of the objects
/// alone.
fn track(objects: Vec<Object>) {
    let events: Vec<Event> = objects.into_iter().map(Event::Apply).collect();
    let mut tracker = Tracker::new(NodeConfig::new(NODE));
    for event in events.clone() {
        tracker.apply(event);
        tracker.resolve();
        tracker.mark_synced();
    }
    assert_invariants(tracker.state());
    let afresh = resolve_afresh(NodeConfig::new(NODE), final_objects(&events));
    assert_eq!(*tracker.state(), afresh);
}
