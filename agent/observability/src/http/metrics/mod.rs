//! The metrics server: `/metrics`, and pages about the program itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use hyper::{
    HeaderMap, Method, Request, StatusCode,
    header::{HeaderName, HeaderValue},
};
use jiff::Timestamp;
use switchyard_config::{gates, settings::Settings, v1alpha1::KubeProxyConfiguration};
use switchyard_core::proxier::Mode;
use tokio::sync::watch;

use super::{
    Answer, Handler, JSON, answer, configz, debug, exposition, not_found, ok, with_header, zpages,
};
use crate::{metrics::Metrics, watches::Watches};

const PROCESS_START: HeaderName = HeaderName::from_static("process-start-time-unix");
/// The paths that `/statusz` lists.
const PATHS: [&str; 7] =
    ["/configz", "/flagz", "/healthz", "/metrics", "/metrics/slis", "/proxyMode", "/statusz"];

/// The handler that serves [`Metrics`], and pages about the program.
pub struct MetricsHandler {
    metrics: Arc<Metrics>,
    watches: Arc<dyn Watches>,
    shown: watch::Receiver<ConfigPages>,
    set_verbosity: debug::SetVerbosity,
    start: Timestamp,
}

/// The pages about the configuration in effect.
pub struct ConfigPages {
    mode: Mode,
    configz: String,
    /// The flags on `/flagz`, or `None` if the page is disabled.
    flags: Option<BTreeMap<&'static str, String>>,
    has_statusz: bool,
    debugs: bool,
}

impl ConfigPages {
    /// Returns the pages about these settings, which were made from this configuration.
    pub fn new(settings: &Settings, config: &KubeProxyConfiguration) -> Self {
        let mode = settings.backend.mode;
        let effective = configz::effective(config, mode);
        let gate = |name| gates::is_on(&config.feature_gates, name);
        Self {
            mode,
            configz: configz::body(&effective).to_string(),
            flags: gate(gates::FLAGZ).then(|| zpages::flags(settings, &effective)),
            has_statusz: gate(gates::STATUSZ),
            debugs: config.enable_profiling,
        }
    }

    /// Returns the paths that are served.
    fn paths(&self) -> Vec<&'static str> {
        let debug_paths = if self.debugs { &debug::PATHS[..] } else { &[] };
        let is_served = |path: &&str| *path != "/flagz" || self.flags.is_some();
        let mut paths: Vec<_> =
            debug_paths.iter().chain(&PATHS).copied().filter(is_served).collect();
        paths.sort_unstable();
        paths
    }
}

impl MetricsHandler {
    /// Returns a handler for these metrics and watches. The pages about the configuration may
    /// change. `set_verbosity` changes the verbosity of the log, and returns false if there is no
    /// log.
    pub fn new(
        metrics: Arc<Metrics>,
        watches: Arc<dyn Watches>,
        shown: watch::Receiver<ConfigPages>,
        set_verbosity: impl Fn(u32) -> bool + Send + Sync + 'static,
    ) -> Self {
        let start = metrics.process_start().and_then(|start| i64::try_from(start).ok());
        Self {
            metrics,
            watches,
            shown,
            set_verbosity: Box::new(set_verbosity),
            start: start
                .and_then(|start| Timestamp::from_second(start).ok())
                .unwrap_or_else(Timestamp::now),
        }
    }

    fn exposition(&self, headers: &HeaderMap) -> Answer {
        self.metrics.watches_heard(|kind| self.watches.silence(kind));
        let form = exposition::negotiate(headers);
        let body = self.metrics.exposition(form);
        let mut answer = answer(StatusCode::OK, exposition::content_type(form), body);
        if let Some(start) = self.metrics.process_start() {
            with_header(&mut answer, PROCESS_START, HeaderValue::from(start));
        }
        answer
    }

    fn slis(&self, request: &Request<Bytes>) -> Answer {
        if *request.method() == Method::DELETE {
            self.metrics.reset_slis();
            return ok("metrics reset\n");
        }
        let form = exposition::negotiate(request.headers());
        answer(StatusCode::OK, exposition::content_type(form), self.metrics.slis(form))
    }

    /// Returns the answer to the only health check, `ping`, which any answer passes.
    fn healthz(&self, query: &str) -> Answer {
        let parameters = query.split('&').map(|p| p.split_once('=').unwrap_or((p, "")));
        let (mut is_verbose, mut is_excluded, mut unknown) = (false, false, BTreeSet::new());
        for (name, value) in parameters {
            match (name, value) {
                ("verbose", _) => is_verbose = true,
                ("exclude", "ping") => is_excluded = true,
                ("exclude", check) => {
                    unknown.insert(check);
                }
                _ => {}
            }
        }
        if !is_excluded {
            self.metrics.pinged();
        }
        if !is_verbose {
            return ok("ok");
        }
        let ping = if is_excluded { "[+]ping excluded: ok\n" } else { "[+]ping ok\n" };
        let mut text = ping.to_owned();
        if !unknown.is_empty() {
            let unknown: Vec<_> = unknown.into_iter().map(|check| format!("{check:?}")).collect();
            text.push_str("warn: some health checks cannot be excluded: no matches for ");
            text.push_str(&unknown.join(","));
            text.push('\n');
        }
        ok(text + "healthz check passed\n")
    }
}

impl Handler for MetricsHandler {
    fn answer(&self, request: &Request<Bytes>) -> Answer {
        match request.uri().path() {
            "/metrics" => self.exposition(request.headers()),
            "/metrics/slis" => self.slis(request),
            "/healthz" => self.healthz(request.uri().query().unwrap_or_default()),
            "/healthz/ping" => ok("ok"),
            "/proxyMode" => ok(self.shown.borrow().mode.as_str()),
            "/configz" => answer(StatusCode::OK, JSON, self.shown.borrow().configz.clone()),
            "/flagz" => match &self.shown.borrow().flags {
                Some(flags) => zpages::flagz(flags).answer(request.headers()),
                None => not_found(),
            },
            "/statusz" if self.shown.borrow().has_statusz => {
                let paths = self.shown.borrow().paths();
                zpages::statusz(self.start, Timestamp::now(), &paths).answer(request.headers())
            }
            path if self.shown.borrow().debugs && path.starts_with("/debug/") => {
                debug::answer_debug(request, &self.set_verbosity)
            }
            _ => not_found(),
        }
    }
}

#[cfg(test)]
mod tests;
