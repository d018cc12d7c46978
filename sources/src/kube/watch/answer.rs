//! Answers of the server to lists and watches, in protobuf or JSON.

use std::{error::Error, io};

use bytes::{Bytes, BytesMut};
use futures::{Stream, stream};
use http_body_util::{BodyExt, Collected, Limited};
use hyper::{
    Request,
    header::{ACCEPT, RETRY_AFTER},
    http::response::Parts,
};
#[cfg(feature = "testing")]
use kube::core::WatchEvent;
use kube::{Client, client::Body, core::Status};
#[cfg(feature = "testing")]
use switchyard_core::objects::EndpointSlice;
use tokio_util::codec::{AnyDelimiterCodec, Decoder, LengthDelimitedCodec};

use super::{
    decode::{self, DecodableObject, DecodeError, Page, WatchItem},
    failure::{Failure, details},
    protobuf,
};
use crate::kube::content_type::ContentType;

/// The most bytes of an error that are read.
const MAX_ERROR: usize = 1 << 20;
/// The most bytes of an event. Objects have at most 1.5 MiB in etcd.
const MAX_EVENT: usize = 64 << 20;

/// The answer to a request, whose body was not read yet.
pub(super) struct Answer {
    form: ContentType,
    body: Body,
}

/// Sends a request for objects in this form.
pub(super) async fn ask(
    client: &Client,
    mut request: Request<Vec<u8>>,
    form: ContentType,
) -> Result<Answer, Failure> {
    request.headers_mut().insert(ACCEPT, form.accepted());
    let answer = client.send(request.map(Body::from)).await?;
    let form = ContentType::of(&answer);
    let (head, body) = answer.into_parts();
    if head.status.is_success() {
        return Ok(Answer { form, body });
    }
    // The head stands without a body that is too long, or breaks off.
    let read = Limited::new(body, MAX_ERROR).collect().await;
    Err(Failure::refusal(status(&head, form, read.map(Collected::to_bytes).unwrap_or_default())))
}

/// Returns the status of a request that failed. The API server's priority and fairness, and
/// gateways, answer in plain text; the seconds to wait are in the header alone then.
fn status(head: &Parts, form: ContentType, body: Bytes) -> Status {
    let read = match form {
        ContentType::Protobuf => protobuf::status(body.clone()).ok(),
        ContentType::Json => serde_json::from_slice(&body).ok(),
    };
    let mut status = read.unwrap_or_else(|| {
        let text = String::from_utf8_lossy(&body);
        Status::failure(text.trim(), "").with_code(head.status.as_u16())
    });
    let header = head.headers.get(RETRY_AFTER);
    let seconds = header.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    if let Some(seconds) = seconds {
        let details = status.details.get_or_insert_with(|| details(0));
        if details.retry_after_seconds == 0 {
            details.retry_after_seconds = seconds;
        }
    }
    status
}

impl Answer {
    pub(super) async fn page<T: DecodableObject>(self) -> Result<Page<T>, Failure> {
        let body = self.body.collect().await.map_err(Failure::cut)?.to_bytes();
        match self.form {
            ContentType::Protobuf => protobuf::page(body),
            ContentType::Json => serde_json::from_slice(&body).map_err(DecodeError::from),
        }
        .map_err(Failure::List)
    }

    /// Returns the events of a watch. They end where the connection breaks, too.
    pub(super) fn events<T: DecodableObject>(
        self,
    ) -> impl Stream<Item = Result<WatchItem<T>, Failure>> + Send {
        let frames =
            Frames { framing: Framing::of(self.form), body: self.body, read: BytesMut::new() };
        stream::try_unfold(frames, async |mut frames| {
            let Some(frame) = frames.next().await? else { return Ok(None) };
            let event = match frames.framing {
                Framing::Protobuf(_) => protobuf::event(frame),
                Framing::Json(_) => decode::event(&frame),
            };
            match event {
                Ok(event) => Ok(Some((event, frames))),
                // The rest of an event whose connection broke.
                Err(DecodeError::Json(error)) if error.is_eof() => Ok(None),
                Err(error) => Err(Failure::Undecodable(error)),
            }
        })
    }
}

/// The way in which events follow each other.
enum Framing {
    /// Each behind its length, in four bytes.
    Protobuf(LengthDelimitedCodec),
    /// One on each line.
    Json(AnyDelimiterCodec),
}

impl Framing {
    fn of(form: ContentType) -> Self {
        match form {
            ContentType::Protobuf => Self::Protobuf(
                LengthDelimitedCodec::builder().max_frame_length(MAX_EVENT).new_codec(),
            ),
            ContentType::Json => {
                let newline = b"\n".to_vec();
                Self::Json(AnyDelimiterCodec::new_with_max_length(newline, Vec::new(), MAX_EVENT))
            }
        }
    }

    /// Takes the first frame out of `read`, if that holds the whole frame.
    fn decode(&mut self, read: &mut BytesMut, is_end: bool) -> io::Result<Option<Bytes>> {
        match self {
            Self::Protobuf(_) if is_end => Ok(None),
            Self::Protobuf(codec) => Ok(codec.decode(read)?.map(BytesMut::freeze)),
            Self::Json(codec) => {
                let frame = if is_end { codec.decode_eof(read) } else { codec.decode(read) };
                frame.map_err(io::Error::other)
            }
        }
    }
}

struct Frames {
    framing: Framing,
    body: Body,
    /// The bytes that were read and not decoded yet.
    read: BytesMut,
}

impl Frames {
    /// Returns the next frame; `None` if the body has ended or the connection broke.
    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        let broken = |error| Failure::Connection(kube::Error::ReadEvents(error));
        loop {
            if let Some(frame) = self.framing.decode(&mut self.read, false).map_err(broken)? {
                return Ok(Some(frame));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.read.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) if !is_end(&error) => return Err(broken(io::Error::other(error))),
                Some(Err(_)) | None => {
                    return self.framing.decode(&mut self.read, true).map_err(broken);
                }
            }
        }
    }
}

/// Whether the connection ended in the middle of the body, as it does when a server or a proxy
/// ends: the watch goes on from its version.
fn is_end(error: &kube::Error) -> bool {
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if kind == Some(io::ErrorKind::UnexpectedEof) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Reads a page of EndpointSlices, or an event of their watch. Returns the number of objects in it.
#[cfg(feature = "testing")]
pub fn read_answer(answer: &[u8]) -> usize {
    let bytes = || Bytes::copy_from_slice(answer);
    let page = protobuf::page::<EndpointSlice>(bytes()).ok();
    if let Some(page) = page.or_else(|| serde_json::from_slice(answer).ok()) {
        return page.items.unwrap_or_default().len();
    }
    match protobuf::event::<EndpointSlice>(bytes()).or_else(|_| decode::event(answer)) {
        Ok(WatchEvent::Bookmark(bookmark)) => usize::from(decode::ends_list(&bookmark)),
        read => usize::from(read.is_ok()),
    }
}

#[cfg(test)]
mod tests {
    use hyper::Response;

    use super::*;

    #[test]
    fn a_refusal_has_the_seconds_of_its_header() {
        let read = |code, seconds: u32, body: &'static [u8]| {
            let answer = Response::builder().status(code).header(RETRY_AFTER, seconds).body(());
            let (head, ()) = answer.unwrap().into_parts();
            let status = status(&head, ContentType::Json, body.into());
            (status.code, status.message, status.details.unwrap().retry_after_seconds)
        };
        let text = b"Too many requests, please try again later.\n";
        let message = "Too many requests, please try again later.".to_owned();
        assert_eq!(read(429, 3, text), (429, message, 3));
        let status = br#"{"kind":"Status","code":503,"message":"m"}"#;
        assert_eq!(read(503, 7, status), (503, "m".to_owned(), 7));
        let status = br#"{"code":503,"message":"m","details":{"retryAfterSeconds":2}}"#;
        assert_eq!(read(503, 7, status), (503, "m".to_owned(), 2));
    }
}
