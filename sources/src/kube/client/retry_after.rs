//! The layer that keeps the `Retry-After` header of an error.
//!
//! The `kube` client reads the body of an error and drops its header. The API server's priority and
//! fairness rejects requests with a body of plain text, so that the header is all there is. The
//! layer moves the header's seconds to the `Status` in the body, where servers put them for other
//! errors.

use std::task::{Context, Poll};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt, Limited};
use hyper::{Request, Response, header::RETRY_AFTER};
use kube::client::Body;
use serde_json::{Value, json};
use tower::{BoxError, Service};

use crate::kube::content_type::ContentType;

/// The longest body of an error that is read.
const MAX_ERROR: usize = 1 << 20;

/// A service whose errors carry the seconds of `Retry-After` in their body.
#[derive(Clone)]
pub(in crate::kube) struct RetryAfter<S>(pub(in crate::kube) S);

impl<S, B> Service<Request<Body>> for RetryAfter<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = self.0.call(request);
        async move {
            let answer = answer.await.map_err(Into::into)?;
            let status = answer.status();
            let is_error = status.is_client_error() || status.is_server_error();
            // The API server's own errors have the seconds in their bodies.
            let is_read = is_error && ContentType::of(&answer) == ContentType::Json;
            let header = answer.headers().get(RETRY_AFTER).filter(|_| is_read);
            let seconds = header.and_then(|value| value.to_str().ok()?.trim().parse::<u32>().ok());
            let Some(seconds) = seconds else {
                return Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()));
            };
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ERROR).collect().await?.to_bytes();
            let body = with_seconds(head.status.as_u16(), &body, seconds);
            let body = http_body_util::Full::from(body).map_err(|never| match never {});
            Ok(Response::from_parts(head, body.boxed_unsync()))
        }
        .boxed()
    }
}

/// Returns the body of an error as a `Status` with the seconds to wait.
fn with_seconds(code: u16, body: &[u8], seconds: u32) -> Vec<u8> {
    let status = serde_json::from_slice(body).ok().filter(Value::is_object);
    let mut status = status.unwrap_or_else(|| {
        let message = String::from_utf8_lossy(body).trim().to_owned();
        json!({"kind": "Status", "status": "Failure", "code": code, "message": message})
    });
    if !status["details"].is_object() {
        status["details"] = json!({});
    }
    let wait = &mut status["details"]["retryAfterSeconds"];
    if wait.as_u64().is_none_or(|seconds| seconds == 0) {
        *wait = seconds.into();
    }
    status.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn read(text: &[u8]) -> (u16, String, u32) {
        let status: Status = serde_json::from_slice(text).unwrap();
        (status.code, status.message, status.details.unwrap().retry_after_seconds)
    }

    #[test]
    fn seconds_are_added_to_a_body() {
        let text = b"Too many requests, please try again later.\n";
        let message = "Too many requests, please try again later.".to_owned();
        assert_eq!(read(&with_seconds(429, text, 3)), (429, message, 3));
        let status = br#"{"kind":"Status","code":503,"message":"m"}"#;
        assert_eq!(read(&with_seconds(503, status, 7)), (503, "m".to_owned(), 7));
        let status = br#"{"code":503,"message":"m","details":{"retryAfterSeconds":2}}"#;
        assert_eq!(read(&with_seconds(503, status, 7)), (503, "m".to_owned(), 2));
    }
}
