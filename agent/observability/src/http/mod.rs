//! The HTTP servers, which answer a few fixed paths by plain HTTP/1.1.

pub mod configz;
pub mod connections;
mod debug;
mod exposition;
pub mod healthz;
pub mod listen;
pub mod metrics;
pub mod rebind;
pub mod serve;
pub mod service_health;
mod write_timeout;
pub mod zpages;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode,
    header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS},
};

/// An answer of a server.
pub type Answer = Response<Full<Bytes>>;

const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A handler of requests.
pub trait Handler: Send + Sync + 'static {
    /// Returns the answer to a request, whose body is empty or short. Must not block.
    fn answer(&self, request: &Request<Bytes>) -> Answer;
}

/// Returns an answer whose content type browsers must not guess.
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

/// Returns plain text with status 200.
fn ok(text: impl Into<Bytes>) -> Answer {
    answer(StatusCode::OK, PLAIN_TEXT, text)
}

fn not_found() -> Answer {
    answer(StatusCode::NOT_FOUND, PLAIN_TEXT, "404 page not found\n")
}

/// Returns a request for `path`.
#[cfg(test)]
fn get(path: &str) -> Request<Bytes> {
    Request::get(path).body(Bytes::new()).unwrap()
}
