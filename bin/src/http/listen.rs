//! Binding and serving.

use std::{
    convert::Infallible,
    io,
    net::{Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{net::TcpListener, time};

use super::Handler;

/// How long to wait before an address that could not be bound is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `handler` at `address` for ever. If the address cannot be bound it is tried again, or,
/// with `hard_fail`, that is the end.
pub async fn serve(
    name: &'static str,
    address: SocketAddr,
    hard_fail: bool,
    handler: Arc<dyn Handler>,
) -> io::Error {
    loop {
        match bind(address) {
            Ok(listener) => {
                tracing::debug!(name, %address, "Listening");
                accept(name, listener, handler).await
            }
            Err(error) => {
                tracing::error!(name, %address, err = %error, "Failed to start server");
                if hard_fail {
                    return error;
                }
            }
        }
        time::sleep(RETRY).await;
    }
}

/// Listens at `address`; at the addresses of both families if it is one family's "any" address and
/// the kernel has IPv6, as Go programs do.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip().is_unspecified() {
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
        match listen(any) {
            Err(error) if address.is_ipv4() && no_ipv6(&error) => {}
            result => return result,
        }
    }
    listen(address)
}

/// Whether the error means that this kernel, or this network namespace, has no IPv6.
fn no_ipv6(error: &io::Error) -> bool {
    let codes = [libc::EAFNOSUPPORT, libc::EADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

/// Accepts connections for ever.
async fn accept(name: &'static str, listener: TcpListener, handler: Arc<dyn Handler>) -> ! {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // A connection that is gone already, or no file descriptor for it.
                tracing::debug!(name, err = %error, "Failed to accept a connection");
                time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let handler = Arc::clone(&handler);
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = handler.answer(request.uri().path());
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .title_case_headers(true)
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                tracing::trace!(name, err = %error, "Connection ended");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    use super::*;
    use crate::http::{Answer, PLAIN_TEXT, answer};

    struct Echo;

    impl Handler for Echo {
        fn answer(&self, path: &str) -> Answer {
            answer(StatusCode::OK, PLAIN_TEXT, path.to_owned())
        }
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    /// A port that was free a moment ago.
    fn free_port() -> u16 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
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
    async fn one_address_is_one_address() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(TcpStream::connect(("127.0.0.2", port)).await.is_err());
        assert!(TcpStream::connect(("::1", port)).await.is_err());
    }

    #[tokio::test]
    async fn an_address_in_use_is_tried_again() {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let blocker = std::net::TcpListener::bind(address).unwrap();
        let error = serve("test", address, true, Arc::new(Echo)).await;
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "hard fail");

        time::pause();
        let server = tokio::spawn(serve("test", address, false, Arc::new(Echo)));
        time::sleep(RETRY / 2).await;
        assert!(!server.is_finished());
        drop(blocker);
        time::sleep(RETRY).await;
        time::resume();
        assert!(get(address, "/again").await.ends_with("/again"));
        server.abort();
    }
}
