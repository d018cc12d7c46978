//! The metrics server: `/metrics`, and pages about the program itself.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use hyper::{
    HeaderMap, Method, Request, StatusCode,
    header::{HeaderName, HeaderValue},
};
use jiff::Timestamp;
use tokio::sync::watch;

use super::{
    Answer, Handler, JSON, PLAIN_TEXT, answer, configz, exposition, not_found, with_header, zpages,
};
use crate::{
    config::{
        gates,
        settings::{Mode, Settings},
        v1alpha1::KubeProxyConfiguration,
    },
    logging,
    metrics::Metrics,
    source::kube::WatchHealth,
};

const PROCESS_START: HeaderName = HeaderName::from_static("process-start-time-unix");
/// What `/statusz` lists.
const PATHS: [&str; 7] =
    ["/configz", "/flagz", "/healthz", "/metrics", "/metrics/slis", "/proxyMode", "/statusz"];
/// The profiler has no counterpart here, so that this is all that `enableProfiling` opens.
const DEBUG_PATHS: [&str; 2] = ["/debug/flags", "/debug/flags/v"];

/// Answers for [`Metrics`], and for the program.
pub struct MetricsHandler {
    metrics: Arc<Metrics>,
    watches: WatchHealth,
    shown: watch::Receiver<Shown>,
    start: Timestamp,
}

/// What is shown of the configuration that is in effect.
pub struct Shown {
    mode: Mode,
    configz: String,
    /// What `/flagz` shows; `None` if there is no such page.
    flags: Option<BTreeMap<&'static str, String>>,
    has_statusz: bool,
    debugs: bool,
}

impl Shown {
    /// Of these settings, made from this configuration.
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

    /// The paths that are served.
    fn paths(&self) -> Vec<&'static str> {
        let debug_paths = if self.debugs { &DEBUG_PATHS[..] } else { &[] };
        let is_served = |path: &&str| *path != "/flagz" || self.flags.is_some();
        debug_paths.iter().chain(&PATHS).copied().filter(is_served).collect()
    }
}

impl MetricsHandler {
    /// What is shown of the configuration may change.
    pub fn new(metrics: Arc<Metrics>, watches: WatchHealth, shown: watch::Receiver<Shown>) -> Self {
        let start = metrics.process_start().and_then(|start| i64::try_from(start).ok());
        Self {
            metrics,
            watches,
            shown,
            start: start
                .and_then(|start| Timestamp::from_second(start).ok())
                .unwrap_or_else(Timestamp::now),
        }
    }

    fn exposition(&self, headers: &HeaderMap) -> Answer {
        self.metrics.watches_heard(|kind| self.watches.heard(kind));
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

    fn healthz(&self, query: Option<&str>) -> Answer {
        self.metrics.pinged();
        let is_verbose = query.unwrap_or_default().split('&').any(|parameter| {
            parameter.split_once('=').map_or(parameter, |(name, _)| name) == "verbose"
        });
        ok(if is_verbose { "[+]ping ok\nhealthz check passed\n" } else { "ok" })
    }

    fn debug(&self, request: &Request<Bytes>) -> Answer {
        match request.uri().path() {
            "/debug/flags" | "/debug/flags/" => ok("/debug/flags/\n\nv\n"),
            "/debug/flags/v" => set_verbosity(request),
            _ => not_found(),
        }
    }
}

impl Handler for MetricsHandler {
    fn answer(&self, request: &Request<Bytes>) -> Answer {
        match request.uri().path() {
            "/metrics" => self.exposition(request.headers()),
            "/metrics/slis" => self.slis(request),
            "/healthz" => self.healthz(request.uri().query()),
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
                self.debug(request)
            }
            _ => not_found(),
        }
    }
}

fn ok(text: impl Into<Bytes>) -> Answer {
    answer(StatusCode::OK, PLAIN_TEXT, text)
}

/// Changes `-v` of the running program.
fn set_verbosity(request: &Request<Bytes>) -> Answer {
    if *request.method() != Method::PUT {
        let text = "unrecognized http method";
        return answer(StatusCode::NOT_ACCEPTABLE, PLAIN_TEXT, text);
    }
    let text = String::from_utf8_lossy(request.body());
    let text = text.trim();
    match text.parse() {
        Ok(verbosity) if logging::set_verbosity(verbosity) => {
            tracing::info!(verbosity, "Verbosity changed");
            ok(format!("successfully set klog.logging.verbosity to {verbosity}"))
        }
        Ok(_) => {
            let text = "failed set klog.logging.verbosity: nothing is logged";
            answer(StatusCode::INTERNAL_SERVER_ERROR, PLAIN_TEXT, text)
        }
        Err(error) => {
            let text: String = text.chars().take(64).flat_map(char::escape_debug).collect();
            let text = format!("failed set klog.logging.verbosity {text}: {error}");
            answer(StatusCode::BAD_REQUEST, PLAIN_TEXT, text)
        }
    }
}

#[cfg(test)]
mod tests;
