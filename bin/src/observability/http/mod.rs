//! The pages of the HTTP servers of [`switchyard::health::http`].

pub mod configz;
mod debug;
pub mod healthz;
pub mod metrics;
pub mod rebind;

use switchyard::health::http::{
    Answer, Handler, JSON, PLAIN_TEXT, Prepared, answer, connections, listen, not_found, ok, serve,
    with_header,
};

#[cfg(test)]
fn get(path: &str) -> hyper::Request<bytes::Bytes> {
    hyper::Request::get(path).body(bytes::Bytes::new()).unwrap()
}
