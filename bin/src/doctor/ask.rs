//! Questions to the servers of a proxy on this node, by HTTP.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// The longest wait for a connection, and for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The part of an answer that is read.
const MOST: usize = 4096;

/// Asks the server that listens at `address` for a page. Returns the beginning of its answer, or
/// `None` if the server takes the connection and does not answer.
///
/// # Errors
/// If there is no connection.
pub(super) fn get(address: SocketAddr, path: &str) -> io::Result<Option<String>> {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(ip, address.port()), PATIENCE)?;
    let (mut answer, begun) = (Vec::new(), Instant::now());
    let mut ask = || -> io::Result<()> {
        stream.set_write_timeout(Some(PATIENCE))?;
        // At once, since a server that closes before it has read everything resets the connection.
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut part = [0; MOST];
        while let Some(left) = PATIENCE.checked_sub(begun.elapsed()).filter(|it| !it.is_zero()) {
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut part[answer.len()..])? {
                0 => break,
                read => answer.extend_from_slice(&part[answer.len()..][..read]),
            }
        }
        Ok(())
    };
    // What came before an error is an answer, too.
    let _ = ask();
    Ok((!answer.is_empty()).then(|| String::from_utf8_lossy(&answer).into_owned()))
}

pub(super) fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    #[test]
    fn a_server_that_sends_one_byte_after_the_other_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let answer = get(address, "/").unwrap().unwrap();
        assert!(answer.len() < MOST, "it was waited for");
    }
}
