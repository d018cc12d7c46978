//! Accepting connections, and answering their requests.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::{
    Request, StatusCode,
    body::{Body, Incoming},
    header::{CONNECTION, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use switchyard_core::error::ErrorChain;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{self, Instant},
};

use super::{
    Answer, Handler, PLAIN_TEXT, answer,
    connections::{Connections, Evicted, Slot},
    with_header,
};

/// The largest body of a request, in bytes.
const LONGEST_BODY: usize = 1024;
/// The largest head of a request, in bytes.
const LONGEST_HEAD: usize = 16 * 1024;
/// The pause after a failure to accept, such as for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The time that a server waits for a client.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// The longest time for the head of a request, including the time before a request, and for its
    /// body.
    request: Duration,
    /// The longest time for which a client can take nothing of an answer.
    write: Duration,
    /// The age at which a connection ends with its next answer. After this time and the time for a
    /// request, the connection ends in any case.
    lifetime: Duration,
}

impl Patience {
    const USUAL: Self = Self {
        request: Duration::from_secs(30),
        write: Duration::from_secs(10),
        lifetime: Duration::from_secs(300),
    };
}

/// Accepts connections for ever, and answers their requests with `handler`. When the returned
/// future is dropped, all connections end. `name` is the server's name in the log. The connections
/// count for the limits of `connections`.
pub async fn accept(
    name: &'static str,
    listener: TcpListener,
    handler: Arc<dyn Handler>,
    connections: Arc<Connections>,
) -> Infallible {
    accept_patiently(name, listener, handler, connections, Patience::USUAL).await
}

async fn accept_patiently(
    name: &'static str,
    listener: TcpListener,
    handler: Arc<dyn Handler>,
    connections: Arc<Connections>,
    patience: Patience,
) -> Infallible {
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
        };
        let accepted = accepted.and_then(|(stream, peer)| Ok((stream.local_addr()?, peer, stream)));
        match accepted {
            Ok((local, peer, stream)) => {
                let place = connections.admit(peer, local).await;
                tasks.spawn(converse(place, name, stream, Arc::clone(&handler), patience));
            }
            Err(error) => {
                // The connection is closed already, or there is no file descriptor.
                tracing::debug!(name, err = %ErrorChain(&error), "Failed to accept a connection");
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Answers the requests of a connection, until the connection ends or is to be closed.
async fn converse(
    (slot, evicted): (Slot, Evicted),
    name: &'static str,
    stream: TcpStream,
    handler: Arc<dyn Handler>,
    patience: Patience,
) {
    let opened = Instant::now();
    let service = service_fn(|request: Request<Incoming>| {
        let can_stay = slot.touch() && opened.elapsed() < patience.lifetime;
        let handler = &handler;
        async move {
            let mut answer = match with_body(request, patience.request).await {
                Ok(request) => match handler.prepare(&request) {
                    Some(prepared) => prepared.await,
                    None => handler.answer(&request),
                },
                Err(status) => refusal(status),
            };
            if !can_stay {
                with_header(&mut answer, CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer)
        }
    });
    // The kernel ends a connection whose client acknowledges nothing, or takes nothing. Without the
    // option, the connection ends with its age.
    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(patience.write));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .title_case_headers(true)
        .header_read_timeout(patience.request)
        .max_buf_size(LONGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        ended = connection => if let Err(error) = ended {
            tracing::trace!(name, err = %ErrorChain(&error), "Connection ended");
        },
        _ = evicted => tracing::trace!(name, "Connection closed in favor of a new one"),
        () = time::sleep(patience.lifetime + patience.request) => {
            tracing::trace!(name, "Connection closed because of its age");
        }
    }
}

/// Returns the request with its whole body, or the status of the refusal of a large or slow body.
async fn with_body(
    request: Request<Incoming>,
    timeout: Duration,
) -> Result<Request<Bytes>, StatusCode> {
    let (head, body) = request.into_parts();
    if body.is_end_stream() {
        return Ok(Request::from_parts(head, Bytes::new()));
    }
    match time::timeout(timeout, Limited::new(body, LONGEST_BODY).collect()).await {
        Ok(Ok(body)) => Ok(Request::from_parts(head, body.to_bytes())),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(StatusCode::PAYLOAD_TOO_LARGE),
        Ok(Err(_)) => Err(StatusCode::BAD_REQUEST),
        Err(_) => Err(StatusCode::REQUEST_TIMEOUT),
    }
}

fn refusal(status: StatusCode) -> Answer {
    answer(status, PLAIN_TEXT, status.canonical_reason().unwrap_or_default())
}

#[cfg(test)]
mod tests;
