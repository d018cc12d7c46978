//! Binding addresses.

use std::{
    io,
    net::{Ipv6Addr, SocketAddr},
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// Listens at `address`. For the "any" address of a family, listens at the addresses of both
/// families if the kernel has IPv6, as Go programs do.
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

/// Listens at `address` in its family alone, even for an "any" address.
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::{TcpStream, ToSocketAddrs};

    use super::*;

    async fn accepts(address: impl ToSocketAddrs) -> bool {
        TcpStream::connect(address).await.is_ok()
    }

    #[tokio::test]
    async fn any_ipv4_address_is_both_families() {
        let listener = bind("0.0.0.0:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(accepts((Ipv4Addr::LOCALHOST, port)).await);
        if std::path::Path::new("/proc/net/if_inet6").exists() {
            assert!(accepts((Ipv6Addr::LOCALHOST, port)).await);
        }
    }

    #[tokio::test]
    async fn one_family_is_one_family() {
        let v4 = bind_one("0.0.0.0:0".parse().unwrap()).unwrap();
        let port = v4.local_addr().unwrap().port();
        assert!(!accepts((Ipv6Addr::LOCALHOST, port)).await);
        if std::path::Path::new("/proc/net/if_inet6").exists() {
            bind_one(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)).unwrap();
        }
    }

    #[tokio::test]
    async fn one_address_is_one_address() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!accepts(("127.0.0.2", port)).await);
        assert!(!accepts(("::1", port)).await);
    }
}
