//! The HTTP servers: plain HTTP, a few fixed paths, answers that are made on the spot.

pub mod configz;
mod debug;
mod exposition;
pub mod healthz;
pub mod listen;
pub mod metrics;
pub mod moving;
pub mod service_health;
pub mod zpages;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode,
    header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS},
};

/// What a server answers with.
pub type Answer = Response<Full<Bytes>>;

const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Something that answers requests.
pub trait Handler: Send + Sync + 'static {
    /// The answer to a request. Its body, which most requests have none of, is short.
    fn answer(&self, request: &Request<Bytes>) -> Answer;
}

/// An answer that browsers must take for what it says it is.
fn answer(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    with_header(&mut answer, CONTENT_TYPE, content_type);
    with_header(&mut answer, X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

fn with_header(answer: &mut Answer, name: HeaderName, value: HeaderValue) {
    answer.headers_mut().insert(name, value);
}

/// Plain text, and all is well.
fn ok(text: impl Into<Bytes>) -> Answer {
    answer(StatusCode::OK, PLAIN_TEXT, text)
}

fn not_found() -> Answer {
    answer(StatusCode::NOT_FOUND, PLAIN_TEXT, "404 page not found\n")
}

/// A request for `path`.
#[cfg(test)]
fn get(path: &str) -> Request<Bytes> {
    Request::get(path).body(Bytes::new()).unwrap()
}
