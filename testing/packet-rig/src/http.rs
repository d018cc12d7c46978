//! The least HTTP that reads health and metrics: one GET, one answer, connection closed.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use crate::{
    error::{Result, RigError},
    netns::NetNs,
    wait::scaled,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    pub status: u16,
    /// The headers, as they came.
    pub head: String,
    pub body: String,
}

/// Asks for `path` at `address`, from inside `namespace`.
pub fn get(namespace: &NetNs, address: SocketAddr, path: &str) -> Result<HttpAnswer> {
    let failed = || RigError::io(format!("GET http://{address}{path}"));
    let text = namespace
        .run(|| {
            let timeout = scaled(Duration::from_secs(5));
            let mut stream = TcpStream::connect_timeout(&address, timeout)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            stream
                .write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        })?
        .map_err(failed())?;
    parse(&text).ok_or_else(|| failed()(std::io::Error::other(format!("no HTTP: {text:?}"))))
}

fn parse(text: &str) -> Option<HttpAnswer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(HttpAnswer { status, head: head.to_owned(), body: body.to_owned() })
}

/// The values of every series of the metric `name` in Prometheus' text format.
pub fn metric_values(text: &str, name: &str) -> Vec<f64> {
    text.lines()
        .filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let value = match rest.strip_prefix('{') {
                Some(labels) => labels.rsplit_once("} ")?.1,
                None => rest.strip_prefix(' ')?,
            };
            value.split(' ').next()?.parse().ok()
        })
        .collect()
}
