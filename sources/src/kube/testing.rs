//! For tests: readers of what servers and plugins answer, and a client of a server in memory.

use bytes::Bytes;
use http_body::Body as HttpBody;
use hyper::{Request, Response};
use kube::{Client, client::Body};
use tower::{BoxError, Service};

pub use crate::kube::{
    client::has_credentials,
    watch::{decode_item, read_answer},
};

/// Returns a client whose requests a service answers.
pub fn client_of<S, B>(server: S) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Client::new(server, "default")
}
