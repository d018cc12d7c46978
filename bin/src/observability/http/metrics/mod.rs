//! The metrics server: `/metrics`, and pages about the program itself.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use hyper::{
    Method, Request, StatusCode,
    header::{ACCEPT, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue},
};
use switchyard_core::{config::NodePortAddressConfig, proxier::Mode};
use tokio::{
    sync::{Mutex, watch},
    task,
};

use super::{
    Answer, Handler, JSON, PLAIN_TEXT, Prepared, answer, configz, debug, not_found, ok, with_header,
};
use crate::config::{settings::Settings, v1alpha1::KubeProxyConfiguration};
use crate::observability::{
    metrics::Metrics,
    status::{Status, StatusSources},
};

const PROCESS_START: HeaderName = HeaderName::from_static("process-start-time-unix");
/// The content type of Prometheus' text format.
const METRICS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// The content type of a page.
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
/// The policy by which a browser loads nothing for a page, and runs nothing in it.
const ONLY_STYLE: HeaderValue =
    HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");

/// The forms of the status.
#[derive(Clone, Copy)]
enum Format {
    Text,
    Html,
    Json,
}

/// The handler that serves [`Metrics`], and pages about the program.
pub struct MetricsHandler {
    metrics: Arc<Metrics>,
    status: StatusSources,
    shown: watch::Receiver<ConfigPages>,
    set_verbosity: debug::SetVerbosity,
    /// The metrics as text, and the time at which that was begun.
    last: Arc<Mutex<Option<(Instant, Bytes)>>>,
    /// The turn of clients that ask for the status.
    turn: Arc<Mutex<()>>,
}

/// The pages about the configuration in effect.
pub struct ConfigPages {
    mode: Mode,
    configz: String,
    debugs: bool,
}

impl ConfigPages {
    /// Returns the pages about these settings, which were made from this configuration.
    pub fn new(settings: &Settings, config: &KubeProxyConfiguration) -> Self {
        let mode = settings.backend.mode;
        let mut effective = configz::effective(config, mode);
        if effective.node_port_addresses.is_empty() {
            let serves_localhost = settings.node.localhost_node_ports;
            let defaults = settings.node.node_port_addresses.iter();
            effective.node_port_addresses = defaults
                .filter(|entry| serves_localhost || **entry != NodePortAddressConfig::Localhost)
                .map(ToString::to_string)
                .collect();
        }
        Self {
            mode,
            configz: configz::body(&effective).to_string(),
            debugs: config.enable_profiling,
        }
    }
}

impl MetricsHandler {
    /// Returns a handler for these metrics, and for the status of these sources. The pages about
    /// the configuration may change. `set_verbosity` changes the verbosity of the log, and returns
    /// false if there is no log.
    pub fn new(
        metrics: Arc<Metrics>,
        status: StatusSources,
        shown: watch::Receiver<ConfigPages>,
        set_verbosity: impl Fn(u32) -> bool + Send + Sync + 'static,
    ) -> Self {
        let set_verbosity = Box::new(set_verbosity);
        Self { metrics, status, shown, set_verbosity, last: Arc::default(), turn: Arc::default() }
    }

    /// Returns the metrics of a moment since the call. They are written on another thread, one
    /// text at a time for all that wait, however many clients ask.
    async fn exposition(&self) -> Answer {
        let asked = Instant::now();
        let mut last = Arc::clone(&self.last).lock_owned().await;
        let (metrics, status) = (Arc::clone(&self.metrics), self.status.clone());
        // A client that goes leaves the lock to the thread.
        let text = task::spawn_blocking(move || match &*last {
            Some((begun, text)) if *begun >= asked => text.clone(),
            _ => {
                let begun = Instant::now();
                let text = Bytes::from(metrics.exposition(&status));
                *last = Some((begun, text.clone()));
                text
            }
        });
        let Ok(text) = text.await else {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            return answer(status, PLAIN_TEXT, "cannot write the metrics\n");
        };
        let mut answer = answer(StatusCode::OK, METRICS, text);
        if let Some(start) = self.metrics.process.start() {
            with_header(&mut answer, PROCESS_START, HeaderValue::from(start));
        }
        answer
    }

    fn slis(&self, request: &Request<Bytes>) -> Answer {
        if *request.method() == Method::DELETE {
            self.metrics.sli.reset();
            return ok("metrics reset\n");
        }
        answer(StatusCode::OK, METRICS, self.metrics.sli.text())
    }

    /// Returns the status in this form. The kernel, which may be slow, is asked on another thread,
    /// for one client at a time.
    async fn status(&self, format: Format) -> Answer {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let (sources, mode) = (self.status.clone(), self.shown.borrow().mode.as_str());
        // A client that goes leaves the turn to the thread.
        let write = move || {
            let _turn = turn;
            format.write(&sources.now(mode))
        };
        task::spawn_blocking(write).await.unwrap_or_else(|_| {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            answer(status, PLAIN_TEXT, "cannot write the status\n")
        })
    }

    /// Returns the answer to the only health check, `ping`, which any answer passes.
    fn healthz(&self, query: &str) -> Answer {
        self.metrics.sli.pinged();
        let is_verbose = query.split('&').any(|word| word.split('=').next() == Some("verbose"));
        ok(if is_verbose { "[+]ping ok\nhealthz check passed\n" } else { "ok" })
    }
}

impl Format {
    /// The form that is asked for: JSON, a page, or else text.
    fn asked(request: &Request<Bytes>) -> Self {
        let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
        let accepts = |kind| accept.is_some_and(|accept| accept.contains(kind));
        match request.uri().query().unwrap_or_default() {
            "format=json" => Self::Json,
            "format=html" => Self::Html,
            "format=text" => Self::Text,
            _ if accepts("application/json") => Self::Json,
            _ if accepts("text/html") => Self::Html,
            _ => Self::Text,
        }
    }

    fn write(self, status: &Status) -> Answer {
        match self {
            Self::Text => ok(status.text()),
            Self::Html => {
                let mut answer = answer(StatusCode::OK, HTML, status.html());
                with_header(&mut answer, CONTENT_SECURITY_POLICY, ONLY_STYLE);
                answer
            }
            Self::Json => match serde_json::to_string(status) {
                Ok(json) => answer(StatusCode::OK, JSON, json),
                Err(error) => {
                    let text = format!("cannot write the status: {error}\n");
                    answer(StatusCode::INTERNAL_SERVER_ERROR, PLAIN_TEXT, text)
                }
            },
        }
    }
}

impl Handler for MetricsHandler {
    fn answer(&self, request: &Request<Bytes>) -> Answer {
        match request.uri().path() {
            "/metrics/slis" => self.slis(request),
            "/healthz" => self.healthz(request.uri().query().unwrap_or_default()),
            "/healthz/ping" => ok("ok"),
            "/proxyMode" => ok(self.shown.borrow().mode.as_str()),
            "/configz" => answer(StatusCode::OK, JSON, self.shown.borrow().configz.clone()),
            path if self.shown.borrow().debugs && path.starts_with("/debug/") => {
                debug::answer_debug(request, &self.set_verbosity)
            }
            _ => not_found(),
        }
    }

    fn prepare(&self, request: &Request<Bytes>) -> Option<Prepared<'_>> {
        match request.uri().path() {
            "/metrics" => Some(Box::pin(self.exposition())),
            "/status" => Some(Box::pin(self.status(Format::asked(request)))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
