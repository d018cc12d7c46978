//! HTTP servers that answer a few fixed paths by plain HTTP/1.1.
//!
//! The protocol is hyper's. The choice of the connection that is closed for a new one is made here
//! ([`connections`]), since frameworks only limit the number, by which one client keeps others out.

pub mod connections;
pub mod listen;
pub mod serve;

use std::pin::Pin;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode,
    header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS},
};

/// An answer of a server.
pub type Answer = Response<Full<Bytes>>;

/// An answer that is being made.
pub type Prepared<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

/// The content type of plain text.
pub const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// The content type of JSON.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A handler of requests.
pub trait Handler: Send + Sync + 'static {
    /// Returns the answer to a request, whose body is empty or short. Must not block.
    fn answer(&self, request: &Request<Bytes>) -> Answer;

    /// Returns an answer that takes longer to make, for which others must not wait; `None` for a
    /// request that [`Handler::answer`] answers.
    fn prepare(&self, _request: &Request<Bytes>) -> Option<Prepared<'_>> {
        None
    }
}

/// Returns an answer whose content type browsers must not guess.
pub fn answer(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    with_header(&mut answer, CONTENT_TYPE, content_type);
    with_header(&mut answer, X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// Sets a header of an answer.
pub fn with_header(answer: &mut Answer, name: HeaderName, value: HeaderValue) {
    answer.headers_mut().insert(name, value);
}

/// Returns plain text with status 200.
pub fn ok(text: impl Into<Bytes>) -> Answer {
    answer(StatusCode::OK, PLAIN_TEXT, text)
}

/// Returns the answer for a path that is not served.
pub fn not_found() -> Answer {
    answer(StatusCode::NOT_FOUND, PLAIN_TEXT, "404 page not found\n")
}

#[cfg(test)]
pub(crate) fn get(path: &str) -> Request<Bytes> {
    Request::get(path).body(Bytes::new()).unwrap()
}
