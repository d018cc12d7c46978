//! Counts what is asked of the API server.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use futures::{FutureExt, future::BoxFuture};
use http_body::{Body, Frame, SizeHint};
use hyper::{Request, Response};
use tower::{Layer, Service};

use crate::metrics::RequestMetrics;

/// Counts the requests of a client, and the bytes of what is not a watch.
#[derive(Clone)]
pub(super) struct Counting(pub(super) RequestMetrics);

impl<S> Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Counted { inner, metrics: self.0.clone() }
    }
}

/// A service whose requests are counted.
#[derive(Clone)]
pub(super) struct Counted<S> {
    inner: S,
    metrics: RequestMetrics,
}

impl<S, A, B> Service<Request<A>> for Counted<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    A: Body,
{
    type Response = Response<CountedBody<B>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let metrics = self.metrics.clone();
        let verb = request.method().as_str().to_owned();
        // It never ends by itself, so that its size says nothing.
        let is_watch = request
            .uri()
            .query()
            .is_some_and(|query| query.split('&').any(|p| matches!(p, "watch=true" | "watch=1")));
        if let Some(bytes) = request.body().size_hint().exact() {
            metrics.sent(&verb, bytes);
        }
        let start = Instant::now();
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await;
            let status = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            metrics.answered(&verb, status, start.elapsed());
            let tally = (!is_watch).then_some(Tally { verb, metrics, bytes: 0 });
            answer.map(|answer| answer.map(|inner| CountedBody { inner, tally }))
        }
        .boxed()
    }
}

/// A body whose bytes are counted until it ends.
pub(super) struct CountedBody<B> {
    inner: B,
    tally: Option<Tally>,
}

struct Tally {
    verb: String,
    metrics: RequestMetrics,
    bytes: u64,
}

impl<B: Body<Data = bytes::Bytes> + Unpin> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let (Some(tally), Some(data)) = (&mut this.tally, frame.data_ref()) {
                    tally.bytes += data.len() as u64;
                }
                // Who reads a body of known length may not ask for what comes after it.
                if this.inner.is_end_stream() {
                    this.end();
                }
            }
            Poll::Ready(None) => this.end(),
            // Half an answer is none.
            Poll::Ready(Some(Err(_))) => this.tally = None,
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B> CountedBody<B> {
    fn end(&mut self) {
        if let Some(Tally { verb, metrics, bytes }) = self.tally.take() {
            metrics.received(&verb, bytes);
        }
    }
}
