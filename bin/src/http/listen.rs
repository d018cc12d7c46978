//! Binding and serving.

use std::{
    convert::Infallible,
    io,
    net::{Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::{
    Request, StatusCode,
    body::{Body, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time,
};

use super::{Answer, Handler, PLAIN_TEXT, answer};

/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest body of a request that is read.
const LONGEST_BODY: usize = 1024;
/// Connections that a server has at once, at most: node ports are in reach of everybody.
const MOST_CONNECTIONS: usize = 512;
/// How long to wait when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens at `address`; at the addresses of both families if it is one family's "any" address and
/// the kernel has IPv6, as Go programs do.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip().is_unspecified() {
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
        match listen(any, false) {
            Err(error) if address.is_ipv4() && no_ipv6(&error) => {}
            result => return result,
        }
    }
    listen(address, true)
}

/// Listens at `address` and nowhere else, even if it is the "any" address of its family.
pub fn bind_one(address: SocketAddr) -> io::Result<TcpListener> {
    listen(address, true)
}

/// Whether the error means that this kernel, or this network namespace, has no IPv6.
fn no_ipv6(error: &io::Error) -> bool {
    let codes = [libc::EAFNOSUPPORT, libc::EADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

fn listen(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(only_v6)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

/// Accepts connections for ever. They end when it does.
pub(crate) async fn accept(
    name: &'static str,
    listener: TcpListener,
    handler: Arc<dyn Handler>,
) -> ! {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(converse(name, stream, Arc::clone(&handler)));
            }
            Err(error) => {
                // A connection that is gone already, or no file descriptor for it.
                tracing::debug!(name, err = %error, "Failed to accept a connection");
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Answers the requests that come on a connection.
async fn converse(name: &'static str, stream: TcpStream, handler: Arc<dyn Handler>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let handler = Arc::clone(&handler);
        async move {
            let request = with_body(request).await;
            Ok::<_, Infallible>(request.map_or_else(refusal, |request| handler.answer(&request)))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .title_case_headers(true)
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::trace!(name, err = %error, "Connection ended");
    }
}

/// The request with all of its body; the status to refuse it with if that is long or slow.
async fn with_body(request: Request<Incoming>) -> Result<Request<Bytes>, StatusCode> {
    let (head, body) = request.into_parts();
    if body.is_end_stream() {
        return Ok(Request::from_parts(head, Bytes::new()));
    }
    match time::timeout(HEAD_TIMEOUT, Limited::new(body, LONGEST_BODY).collect()).await {
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
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    struct Echo;

    impl Handler for Echo {
        fn answer(&self, request: &Request<Bytes>) -> Answer {
            let path = request.uri().path().as_bytes();
            answer(StatusCode::OK, PLAIN_TEXT, [path, request.body()].concat())
        }
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        ask(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await
    }

    async fn put(address: SocketAddr, body: &str) -> String {
        let length = body.len();
        let head = "PUT / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length:";
        ask(address, &format!("{head} {length}\r\n\r\n{body}")).await
    }

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn any_ipv4_address_is_both_families() {
        let listener = bind("0.0.0.0:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(accept("test", listener, Arc::new(Echo)));
        let answer = get(SocketAddr::from(([127, 0, 0, 1], port)), "/a?b").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n/a"), "{answer}");
        if std::path::Path::new("/proc/net/if_inet6").exists() {
            let answer = get(SocketAddr::from((Ipv6Addr::LOCALHOST, port)), "/c").await;
            assert!(answer.ends_with("\r\n\r\n/c"), "{answer}");
        }
        server.abort();
    }

    #[tokio::test]
    async fn short_bodies_are_read() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(accept("test", listener, Arc::new(Echo)));
        assert!(put(address, "body").await.ends_with("\r\n\r\n/body"));
        let answer = put(address, &"x".repeat(LONGEST_BODY + 1)).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        server.abort();
    }

    #[tokio::test]
    async fn one_family_is_one_family() {
        let v4 = bind_one("0.0.0.0:0".parse().unwrap()).unwrap();
        let port = v4.local_addr().unwrap().port();
        assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.is_err());
        if std::path::Path::new("/proc/net/if_inet6").exists() {
            bind_one(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)).unwrap();
        }
    }

    #[tokio::test]
    async fn one_address_is_one_address() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(TcpStream::connect(("127.0.0.2", port)).await.is_err());
        assert!(TcpStream::connect(("::1", port)).await.is_err());
    }
}
