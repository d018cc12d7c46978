//! Known bytes, and answers that are decoded by the derived messages of `prost`.

use std::collections::HashMap;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{
    Request, Response,
    header::{ACCEPT, CONTENT_TYPE},
};
use prost::Message;
use serde_json::json;
use tower::Service;

use super::*;
use crate::{Direct, direct::Connection};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const SERVICES: &str = "/api/v1/services";

async fn request(server: &Direct, accept: &str, path: &str) -> Response<Connection> {
    let request = Request::get(path).header(ACCEPT, accept).body(kube::client::Body::empty());
    server.clone().call(request.unwrap()).await.unwrap()
}

/// Returns the `Content-Type` and the body of an answer, or the first piece of a watch's.
async fn received(answer: Response<Connection>) -> (String, Bytes) {
    let media = answer.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
    let mut body = answer.into_body();
    (media, body.frame().await.unwrap().unwrap().into_data().unwrap())
}

#[tokio::test]
async fn lists_and_watches_have_the_bytes_of_a_genuine_server() {
    let server = Direct::default();
    server.store().apply(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "uid": "u"},
        "spec": {"ports": [{"port": 80, "targetPort": "web"}]},
    }));
    let list: [&[u8]; 12] = [
        b"k8s\0",
        // The type: apiVersion and kind.
        b"\x0a\x11\x0a\x02v1\x12\x0bServiceList",
        // 82 bytes, the list: first its metadata with the version 2.
        b"\x12\x52\x0a\x07\x0a\x00\x12\x012\x1a\x00",
        // An item, and its metadata: name, generateName, namespace, selfLink, uid,
        b"\x12\x47\x0a\x1a\x0a\x01a\x12\x00\x1a\x07default\x22\x00\x2a\x01u",
        // resourceVersion, generation and creationTimestamp, which is an empty message.
        b"\x32\x012\x38\x00\x42\x00",
        // The spec, and its port: name, protocol, port,
        b"\x12\x25\x0a\x13\x0a\x00\x12\x00\x18\x50",
        // targetPort with type, number and text, nodePort.
        b"\x22\x09\x08\x01\x10\x00\x1a\x03web\x28\x00",
        // clusterIP, type, sessionAffinity, loadBalancerIP,
        b"\x1a\x00\x22\x00\x3a\x00\x42\x00",
        // externalName, externalTrafficPolicy, healthCheckNodePort, publishNotReadyAddresses.
        b"\x52\x00\x5a\x00\x60\x00\x68\x00",
        // The status with the load balancer's.
        b"\x1a\x02\x0a\x00",
        // The content's encoding and its media type.
        b"\x1a\x00",
        b"\x22\x00",
    ];
    let (media, body) = received(request(&server, PROTOBUF, SERVICES).await).await;
    assert_eq!((media.as_str(), &body[..]), (PROTOBUF, &list.concat()[..]));

    let bookmark: [&[u8]; 9] = [
        // 119 bytes, the event: the type and the object, whose bytes are in a message.
        b"\x00\x00\x00\x77\x0a\x08BOOKMARK\x12\x6b\x0a\x69",
        b"k8s\0",
        b"\x0a\x23\x0a\x14networking.k8s.io/v1\x12\x0bServiceCIDR",
        // 58 bytes, the object: first its metadata from name to uid,
        b"\x12\x3a\x0a\x34\x0a\x00\x12\x00\x1a\x00\x22\x00\x2a\x00",
        // from resourceVersion to creationTimestamp,
        b"\x32\x012\x38\x00\x42\x00",
        // annotations.
        b"\x62\x21\x0a\x19k8s.io/initial-events-end\x12\x04true",
        // The spec and the status.
        b"\x12\x00\x1a\x00",
        b"\x1a\x00",
        b"\x22\x00",
    ];
    let path = "/apis/networking.k8s.io/v1/servicecidrs?watch=true&sendInitialEvents=true\
                &resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let (media, body) = received(request(&server, PROTOBUF, path).await).await;
    assert_eq!(media, "application/vnd.kubernetes.protobuf;stream=watch");
    assert_eq!(body, bookmark.concat());
}

#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Slice {
    #[prost(message, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(message, repeated, tag = "2")]
    endpoints: Vec<Endpoint>,
    #[prost(message, repeated, tag = "3")]
    ports: Vec<Port>,
    #[prost(string, tag = "4")]
    address_type: String,
}

#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(message, tag = "8")]
    created: Option<Instant>,
    #[prost(map = "string, string", tag = "11")]
    labels: HashMap<String, String>,
    #[prost(message, repeated, tag = "17")]
    managed_fields: Vec<ManagedFields>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Instant {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ManagedFields {
    #[prost(message, tag = "7")]
    fields: Option<Name>,
}

#[derive(Clone, PartialEq, Message)]
struct Endpoint {
    #[prost(string, repeated, tag = "1")]
    addresses: Vec<String>,
    #[prost(message, tag = "2")]
    conditions: Option<Conditions>,
    #[prost(string, optional, tag = "3")]
    hostname: Option<String>,
    #[prost(string, optional, tag = "6")]
    node: Option<String>,
    #[prost(message, tag = "8")]
    hints: Option<Hints>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Conditions {
    #[prost(bool, optional, tag = "1")]
    ready: Option<bool>,
    #[prost(bool, optional, tag = "2")]
    serving: Option<bool>,
    #[prost(bool, optional, tag = "3")]
    terminating: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct Hints {
    #[prost(message, repeated, tag = "1")]
    zones: Vec<Name>,
}

#[derive(Clone, PartialEq, Message)]
struct Name {
    #[prost(string, tag = "1")]
    text: String,
}

#[derive(Clone, PartialEq, Message)]
struct Port {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(int32, optional, tag = "3")]
    number: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Refusal {
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(int32, tag = "6")]
    code: i32,
}

fn decoded<M: Message + Default>(bytes: &[u8]) -> Result<M, prost::DecodeError> {
    let unknown = bytes.strip_prefix(MAGIC).expect("the magic number");
    M::decode(&*Unknown::decode(unknown)?.raw)
}

#[test]
fn an_object_has_the_fields_of_its_json() {
    let endpoint = |number| {
        json!({
            "addresses": [format!("10.0.0.{number}")], "nodeName": "node-1",
            "conditions": {"ready": true, "serving": null, "terminating": false},
            "targetRef": {"kind": "Pod", "name": "pod"},
            "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "node-1"}]},
        })
    };
    let slice = json!({
        "metadata": {
            "name": "a", "creationTimestamp": "2026-01-01T00:00:00.5Z", "labels": {"x": "y"},
            "managedFields": [{"fieldsV1": {"f:ports": {}}}], "unknown": 1,
        },
        "endpoints": (0..200).map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "", "port": 8080}],
        "addressType": "IPv4",
    });
    let name = |text: &str| Name { text: text.to_owned() };
    let endpoint = |number| Endpoint {
        addresses: vec![format!("10.0.0.{number}")],
        conditions: Some(Conditions { ready: Some(true), serving: None, terminating: Some(false) }),
        hostname: None,
        node: Some("node-1".to_owned()),
        hints: Some(Hints { zones: vec![name("z")] }),
    };
    let expected = Slice {
        metadata: Some(Metadata {
            created: Some(Instant { seconds: 1_767_225_600 }),
            labels: [("x".to_owned(), "y".to_owned())].into(),
            managed_fields: vec![ManagedFields { fields: Some(name(r#"{"f:ports":{}}"#)) }],
        }),
        endpoints: (0..200).map(endpoint).collect(),
        ports: vec![Port { name: Some(String::new()), number: Some(8080) }],
        address_type: "IPv4".to_owned(),
    };
    assert_eq!(decoded(&object(Resource::EndpointSlices, &slice)), Ok(expected));

    for malformed in [
        json!({"ports": [{"port": "http"}]}),
        json!({"ports": [{"port": 1_u64 << 40}]}),
        json!({"ports": {"port": 80}}),
        json!({"metadata": {"creationTimestamp": "yesterday"}}),
        json!({"metadata": {"labels": {"x": 1}}}),
        json!({"metadata": {"labels": "x"}}),
        json!({"endpoints": ["10.0.0.1"]}),
        json!({"endpoints": [{"addresses": [1]}]}),
        json!({"endpoints": [{"conditions": {"ready": 1}}]}),
    ] {
        let object = object(Resource::EndpointSlices, &malformed);
        assert!(decoded::<Slice>(&object).is_err(), "{malformed}");
    }
}

#[tokio::test]
async fn the_first_media_type_that_the_server_has_is_answered() {
    let server = Direct::default();
    let both = format!("{PROTOBUF};q=1, application/json");
    for (accept, media) in [
        (PROTOBUF, PROTOBUF),
        (&*both, PROTOBUF),
        ("application/json, application/vnd.kubernetes.protobuf", "application/json"),
        ("application/cbor,application/vnd.kubernetes.protobuf", PROTOBUF),
        ("*/*", "application/json"),
    ] {
        let answer = received(request(&server, accept, SERVICES).await).await;
        assert_eq!(answer.0, media, "{accept}");
    }

    server.faults().forbid(Resource::Services, true);
    let (media, body) = received(request(&server, &both, SERVICES).await).await;
    let refusal: Refusal = decoded(&body).unwrap();
    assert_eq!((&*media, &*refusal.reason, refusal.code), (PROTOBUF, "Forbidden", 403));
    assert!(refusal.message.starts_with("services is forbidden"), "{refusal:?}");

    server.faults().offers_protobuf(false);
    let (media, body) = received(request(&server, &both, SERVICES).await).await;
    let status: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&*media, &status["code"]), ("application/json", &json!(403)));
}
