//! Objects that cannot be decoded.

use api_standin::{Options, Resource, load};
use serde_json::{Value, json};
use switchyard_core::objects::Kind;
use switchyard_sources::kube::Timing;

use crate::kube::rig::{Rig, apply, fill, paged};

fn malformed_service() -> Value {
    let mut service = load::service(1);
    service["spec"]["ports"] = json!([{"port": 80}, {"port": "http"}]);
    service
}

#[tokio::test]
async fn a_malformed_object_is_reported_and_the_rest_arrives() {
    let (in_protobuf, in_json) = (
        ("", "ServiceSpecPort.port: ServiceSpec.ports: Service.spec: invalid wire type"),
        ("spec.ports[1].port", "\"http\""),
    );
    for (options, expected) in [
        (Options::default(), in_protobuf),
        (paged(), in_protobuf),
        (Options::default(), in_json),
        (paged(), in_json),
    ] {
        let mut rig = Rig::start(options, Timing::default(), |server| {
            server.faults().offers_protobuf(expected == in_protobuf);
            fill(server, 3);
            apply(server, malformed_service());
            let nameless = json!({"metadata": {"name": {}}, "spec": {"clusterIP": "10.0.0.1"}});
            let store = server.store();
            store.apply_as(Resource::Services, "x", "nameless", nameless);
        })
        .await;
        rig.synced().await;
        rig.until("a report", |rig| !rig.malformed.is_empty()).await;
        assert_eq!(rig.names(Kind::Service), ["svc-0", "svc-2"].into());
        let (key, (field, message)) = rig.malformed.first_key_value().unwrap();
        assert_eq!(key.to_string(), "Service load/svc-1");
        assert_eq!(field, expected.0);
        assert!(message.contains(expected.1), "{message}");
        // Repaired, and broken again: the last state stays, through a new list too.
        apply(&rig.server, load::service(1));
        rig.until("the repair", |rig| rig.malformed.is_empty()).await;
        apply(&rig.server, malformed_service());
        rig.until("the report of a change", |rig| !rig.malformed.is_empty()).await;
        assert!(rig.has(Kind::Service, "svc-1"));
        rig.server.faults().expire_watches();
        rig.until("a second list", |rig| rig.listed[&Kind::Service] == 2).await;
        assert!(rig.has(Kind::Service, "svc-1"));
        rig.server.store().delete(Resource::Services, load::NAMESPACE, "svc-1");
        rig.until("a deletion", |rig| !rig.has(Kind::Service, "svc-1")).await;
    }
}
