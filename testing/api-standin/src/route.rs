//! The dispatch of a request to the handler of its path.

use bytes::Bytes;
use hyper::{
    Method, Request, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, USER_AGENT},
};
use serde_json::{Value, json};

use crate::{
    answer::{Status, StreamedBody, json_answer, no_api},
    list,
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
    let path = request.uri().path();
    if matches!(path, "/healthz" | "/livez" | "/readyz") {
        return Response::new(StreamedBody::whole(Bytes::from_static(b"ok")));
    }
    let has_token =
        header(AUTHORIZATION).map(|value| value.strip_prefix("Bearer ") == Some(&*shared.token()));
    match (has_token, certificate) {
        (Some(true), _) | (_, Some(true)) => (),
        // A client without credentials is the user `system:anonymous`, who has no roles.
        (None, None) => return anonymous(path).into_answer(),
        _ => return Status::new(401, "Unauthorized", "Unauthorized").into_answer(),
    }
    dispatch(shared, request, body).unwrap_or_else(Status::into_answer)
}

fn dispatch(
    shared: &Shared,
    request: &Request<()>,
    body: &Bytes,
) -> Result<Response<StreamedBody>, Status> {
    let path = request.uri().path();
    let mut query = Query::parse(request.uri().query().unwrap_or_default());
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    if let Some(accept) = accept.filter(|_| shared.faults.lock().drops_fields) {
        query = query.accepting(accept);
    }
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
        return Ok(answer);
    }
    let (store, faults) = (&shared.store, &shared.faults);
    match name {
        None if is_watch => {
            watch::watch(store, faults, resource, namespace, &query, shared.bookmarks)
        }
        None => list::list(store, faults, resource, namespace, &query),
        Some(name) => match store.get(resource, namespace.unwrap_or_default(), name) {
            Some(value) => Ok(object(StatusCode::OK, &query.view()(&value))),
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

fn object(code: StatusCode, value: &Value) -> Response<StreamedBody> {
    json_answer(code, StreamedBody::whole(value.to_string().into()))
}

/// Keeps an Event and returns it as the answer.
fn event(shared: &Shared, method: &Method, body: &Bytes) -> Result<Response<StreamedBody>, Status> {
    if !matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
        return Err(Status::new(405, "MethodNotAllowed", "events can only be created"));
    }
    let value: Value =
        serde_json::from_slice(body).map_err(|error| Status::bad_request(error.to_string()))?;
    let code = if method == Method::POST { StatusCode::CREATED } else { StatusCode::OK };
    let answer = object(code, &value);
    shared.keep_event(value);
    Ok(answer)
}
