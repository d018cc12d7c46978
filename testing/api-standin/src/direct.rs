//! The stand-in without sockets: a service that a client calls in its own thread, in the time of
//! its runtime, which may be a paused clock.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::{
    Request, Response,
    body::{Body, Frame},
};
use kube::client;
use tower::Service;

use crate::{
    answer::StreamedBody,
    faults::Faults,
    server::{Options, respond},
    state::Shared,
    store::Store,
};

/// A stand-in that is called without a connection, and trusts every caller. Each request counts as
/// a connection of its own where connections are cut or refused. Clones are the same server.
#[derive(Clone, Debug)]
pub struct Direct(Arc<Shared>);

impl Default for Direct {
    fn default() -> Self {
        Self(Arc::new(Shared::new(&Options::default())))
    }
}

impl Direct {
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    pub fn faults(&self) -> &Faults {
        &self.0.faults
    }

    /// The same as [`Standin::requests`](crate::Standin::requests).
    pub fn requests(&self) -> Vec<String> {
        self.0.requests()
    }
}

impl Service<Request<client::Body>> for Direct {
    type Response = Response<Connection>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Response<Connection>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<client::Body>) -> Self::Future {
        let shared = self.0.clone();
        Box::pin(async move {
            if shared.faults.lock().refuses_connections {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let mut cuts = shared.faults.cuts.subscribe();
            let mut cut = Box::pin(async move { drop(cuts.changed().await) });
            tokio::select! {
                biased;
                () = &mut cut => Err(io::ErrorKind::ConnectionReset.into()),
                answer = respond(&shared, request, Some(true)) => {
                    Ok(answer.map(|body| Connection { body, cut }))
                }
            }
        })
    }
}

/// The body of an answer, which fails when connections are cut.
pub struct Connection {
    body: StreamedBody,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Body for Connection {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(io::ErrorKind::ConnectionReset.into())));
        }
        Poll::Ready(ready!(Pin::new(&mut self.body).poll_frame(context)))
    }
}
