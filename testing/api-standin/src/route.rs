//! The dispatch of a request to the handler of its path.

use bytes::Bytes;
use hyper::{
    Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, USER_AGENT},
};
use serde_json::{Value, json};

use crate::{
    answer::{self, Status, StreamedBody, no_api},
    list,
    media::MediaType,
    query::Query,
    resource::Resource,
    state::Shared,
    watch,
};

/// The resource, namespace and object that a path names.
#[derive(Debug)]
struct Target<'p> {
    resource: Resource,
    namespace: Option<&'p str>,
    name: Option<&'p str>,
}

impl<'p> Target<'p> {
    fn parse(path: &'p str) -> Option<Self> {
        Resource::ALL.into_iter().find_map(|resource| {
            let rest = path.strip_prefix(&resource.base_path())?.strip_prefix('/')?;
            let parts: Vec<_> = rest.split('/').collect();
            let (namespace, parts) = match parts[..] {
                ["namespaces", namespace, ref parts @ ..] if resource.is_namespaced() => {
                    (Some(namespace), parts)
                }
                ref parts => (None, parts),
            };
            match parts {
                [plural] if *plural == resource.name() => {
                    Some(Self { resource, namespace, name: None })
                }
                [plural, name] if *plural == resource.name() => {
                    Some(Self { resource, namespace, name: Some(name) })
                }
                _ => None,
            }
        })
    }
}

/// Answers a request whose body was read. `certificate` says whether the client certificate of the
/// connection counts, if there is one.
pub(crate) fn answer(
    shared: &Shared,
    request: &Request<()>,
    body: &Bytes,
    certificate: Option<bool>,
) -> Response<StreamedBody> {
    let header = |name| request.headers().get(name).and_then(|v| v.to_str().ok());
    shared.record(format!("{} {}", request.method(), request.uri()), header(USER_AGENT));
    let media = shared.media_type(request.headers());
    let path = request.uri().path();
    if matches!(path, "/healthz" | "/livez" | "/readyz") {
        return Response::new(StreamedBody::whole(Bytes::from_static(b"ok")));
    }
    if path == "/version" {
        let info = br#"{"major":"1","minor":"36","gitVersion":"v1.36.2","gitCommit":"","gitTreeState":"","buildDate":"","goVersion":"","compiler":"gc","platform":"linux/amd64"}"#;
        return Response::new(StreamedBody::whole(Bytes::from_static(info)));
    }
    let has_token =
        header(AUTHORIZATION).map(|value| value.strip_prefix("Bearer ") == Some(&*shared.token()));
    match (has_token, certificate) {
        (Some(true), _) | (_, Some(true)) => (),
        // A client without credentials is the user `system:anonymous`, who has no roles.
        (None, None) => return anonymous(path).into_answer(media),
        _ => return Status::new(401, "Unauthorized", "Unauthorized").into_answer(media),
    }
    dispatch(shared, request, body, media).unwrap_or_else(|status| status.into_answer(media))
}

fn dispatch(
    shared: &Shared,
    request: &Request<()>,
    body: &Bytes,
    media: MediaType,
) -> Result<Response<StreamedBody>, Status> {
    let path = request.uri().path();
    let query = Query::parse(request.uri().query().unwrap_or_default());
    if path.starts_with("/apis/events.k8s.io/v1/") || path.ends_with("/events") {
        return event(shared, request.method(), body);
    }
    let Some(Target { resource, namespace, name }) = Target::parse(path) else {
        let is_api = Resource::ALL.iter().any(|resource| path.starts_with(&resource.base_path()));
        if !is_api {
            return Ok(no_api());
        }
        let message = "the server could not find the requested resource";
        return Err(Status::new(404, "NotFound", message));
    };
    let is_watch = query.is_true("watch");
    let verb = match (request.method(), name) {
        (&Method::GET, Some(_)) => "get",
        (&Method::GET, None) if is_watch => "watch",
        (&Method::GET, None) => "list",
        _ => return Err(Status::new(405, "MethodNotAllowed", "not served by the stand-in")),
    };
    if let Some(answer) = shared.faults.verdict(resource, verb) {
        return answer;
    }
    let (store, faults) = (&shared.store, &shared.faults);
    match name {
        None if is_watch => {
            watch::watch(store, faults, resource, namespace, &query, shared.bookmarks, media)
        }
        None => list::list(store, faults, resource, namespace, &query, media),
        Some(name) => match store.get(resource, namespace.unwrap_or_default(), name) {
            Some(value) => {
                let body = StreamedBody::whole(media.object(resource, &value).into());
                Ok(answer::answer(StatusCode::OK, media.name(), body))
            }
            None => Err(not_found(resource, name)),
        },
    }
}

fn not_found(resource: Resource, name: &str) -> Status {
    let details = match resource.group() {
        "" => json!({"name": name, "kind": resource.name()}),
        group => json!({"name": name, "group": group, "kind": resource.name()}),
    };
    Status { details, ..Status::new(404, "NotFound", format!("{resource} \"{name}\" not found")) }
}

fn anonymous(path: &str) -> Status {
    let kind = Target::parse(path).map_or("", |target| target.resource.name());
    let message = format!("{kind} is forbidden: User \"system:anonymous\" has no access");
    Status { details: json!({"kind": kind}), ..Status::new(403, "Forbidden", message) }
}

/// Keeps an Event and returns it as the answer, as it came.
fn event(shared: &Shared, method: &Method, body: &Bytes) -> Result<Response<StreamedBody>, Status> {
    if !matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
        return Err(Status::new(405, "MethodNotAllowed", "events can only be created"));
    }
    let value: Value =
        serde_json::from_slice(body).map_err(|error| Status::bad_request(error.to_string()))?;
    let code = if method == Method::POST { StatusCode::CREATED } else { StatusCode::OK };
    shared.keep_event(value);
    Ok(answer::answer(code, "application/json", StreamedBody::whole(body.clone())))
}
