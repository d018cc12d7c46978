//! The layer that reports each request to a [`RequestObserver`].

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use futures::{FutureExt, future::BoxFuture};
use http_body::{Body, Frame, SizeHint};
use hyper::{Request, Response};
use tower::Service;

use crate::kube::observer::RequestObserver;

/// A service whose requests are reported, and the bytes of all answers that are no watches.
#[derive(Clone)]
pub(super) struct Observed<S> {
    inner: S,
    observer: Option<Arc<dyn RequestObserver>>,
}

impl<S> Observed<S> {
    /// Wraps `inner`; without an observer nothing is reported.
    pub(super) fn new(inner: S, observer: Option<Arc<dyn RequestObserver>>) -> Self {
        Self { inner, observer }
    }
}

impl<S, A, B> Service<Request<A>> for Observed<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    A: Body,
{
    type Response = Response<ObservedBody<B>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let observer = self.observer.clone();
        let verb = request.method().as_str().to_owned();
        // The size of a watch means nothing: a watch never ends by itself.
        let is_watch = request
            .uri()
            .query()
            .is_some_and(|query| query.split('&').any(|p| matches!(p, "watch=true" | "watch=1")));
        if let (Some(observer), Some(bytes)) = (&observer, request.body().size_hint().exact()) {
            observer.sent(&verb, bytes);
        }
        let sent = Sent { verb, observer, at: Instant::now(), status: None };
        let answer = self.inner.call(request);
        async move {
            let mut sent = sent;
            let answer = answer.await;
            sent.status = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            let observer = sent.observer.clone().filter(|_| !is_watch);
            let tally =
                observer.map(|observer| Tally { verb: sent.verb.clone(), observer, bytes: 0 });
            answer.map(|answer| answer.map(|inner| ObservedBody { inner, tally }))
        }
        .boxed()
    }
}

/// A request that is reported once it is answered, has failed, or is given up.
struct Sent {
    verb: String,
    observer: Option<Arc<dyn RequestObserver>>,
    at: Instant,
    status: Option<u16>,
}

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some(observer) = &self.observer {
            observer.answered(&self.verb, self.status, self.at.elapsed());
        }
    }
}

/// A body whose bytes are counted until it ends.
pub(super) struct ObservedBody<B> {
    inner: B,
    tally: Option<Tally>,
}

struct Tally {
    verb: String,
    observer: Arc<dyn RequestObserver>,
    bytes: u64,
}

impl<B: Body<Data = bytes::Bytes> + Unpin> Body for ObservedBody<B> {
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
                // A reader of a body of known length need not poll again after the last byte.
                if this.inner.is_end_stream() {
                    this.end();
                }
            }
            Poll::Ready(None) => this.end(),
            // An incomplete answer is not counted.
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

impl<B> ObservedBody<B> {
    fn end(&mut self) {
        if let Some(Tally { verb, observer, bytes }) = self.tally.take() {
            observer.received(&verb, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future::pending,
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
        time::Duration,
    };

    use kube::client::Body;
    use tower::service_fn;

    use super::*;

    #[derive(Debug, Default)]
    struct Failures(AtomicUsize);

    impl RequestObserver for Failures {
        fn sent(&self, _: &str, _: u64) {}

        fn answered(&self, verb: &str, status: Option<u16>, _: Duration) {
            assert_eq!((verb, status), ("GET", None));
            self.0.fetch_add(1, Relaxed);
        }

        fn received(&self, _: &str, _: u64) {}

        fn held_back(&self, _: &str, _: Duration) {}
    }

    #[tokio::test]
    async fn a_request_that_is_given_up_is_reported() {
        let failures = Arc::new(Failures::default());
        let silent = service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Infallible>>());
        let mut service = Observed::new(silent, Some(failures.clone()));
        assert!(service.call(Request::new(Body::empty())).now_or_never().is_none());
        assert_eq!(failures.0.load(Relaxed), 1);
    }
}
