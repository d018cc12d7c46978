//! Answers: bodies and the API's `Status` errors.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::{
    Response, StatusCode,
    body::{Body, Frame},
    header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::media::MediaType;

/// A body that another task writes. Chunks appear on the wire as they are sent.
pub(crate) struct StreamedBody {
    chunks: Receiver<Bytes>,
}

impl StreamedBody {
    /// Returns a body and the sender that writes it. The body ends when the sender is dropped; the
    /// sender fails when the client is gone.
    pub(crate) fn new() -> (Sender<Bytes>, Self) {
        let (sender, receiver) = mpsc::channel(8);
        (sender, Self { chunks: receiver })
    }

    /// Returns a body that is complete.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        let (sender, body) = Self::new();
        // The channel is empty, so that this cannot fail.
        let _ = sender.try_send(bytes);
        body
    }
}

impl Body for StreamedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.chunks.poll_recv(context).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Returns an answer with a body of this media type.
pub(crate) fn answer(
    code: StatusCode,
    media: &'static str,
    body: StreamedBody,
) -> Response<StreamedBody> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

/// Returns the answer of a server's priority and fairness to a request too many.
pub(crate) fn throttled(seconds: u32) -> Response<StreamedBody> {
    let text = "Too many requests, please try again later.\n";
    let mut response = text_answer(StatusCode::TOO_MANY_REQUESTS, text);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// Returns the answer to a path that belongs to no API.
pub(crate) fn no_api() -> Response<StreamedBody> {
    text_answer(StatusCode::NOT_FOUND, "404 page not found\n")
}

fn text_answer(code: StatusCode, text: &'static str) -> Response<StreamedBody> {
    answer(code, "text/plain; charset=utf-8", StreamedBody::whole(text.into()))
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Status {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) details: Value,
}

impl Status {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null }
    }

    /// The error for a version that the log no longer reaches.
    pub(crate) fn expired(version: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {version} ({oldest})"))
    }

    /// The error for a version that does not exist yet.
    pub(crate) fn too_large(version: u64, newest: u64) -> Self {
        Self {
            details: json!({
                "causes": [{
                    "reason": "ResourceVersionTooLarge", "message": "Too large resource version",
                }],
                "retryAfterSeconds": 1,
            }),
            ..Self::new(
                504,
                "Timeout",
                format!("Too large resource version: {version}, current: {newest}"),
            )
        }
    }

    /// The error that ends a streamed list of a server whose etcd lacks progress requests.
    pub(crate) fn no_progress_requests() -> Self {
        let message = "a watch stream was requested by the client but the required storage feature \
                       RequestWatchProgress is disabled";
        Self::new(500, "InternalError", message)
    }

    /// The error for parameters that the server does not accept.
    pub(crate) fn invalid(field: &str, message: &str) -> Self {
        Self {
            details: json!({
                "group": "meta.k8s.io", "kind": "ListOptions",
                "causes": [{"reason": "FieldValueForbidden", "message": message, "field": field}],
            }),
            ..Self::new(
                422,
                "Invalid",
                format!("ListOptions.meta.k8s.io \"\" is invalid: {field}: {message}"),
            )
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }

    pub(crate) fn into_answer(self, media: MediaType) -> Response<StreamedBody> {
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = StreamedBody::whole(media.status(&self.to_json()).into());
        let mut answer = answer(code, media.name(), body);
        if let Some(seconds) = self.details["retryAfterSeconds"].as_u64() {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        answer
    }
}
