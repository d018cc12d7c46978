//! The configuration of the source: how to reach the API server, and how long to wait for it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::kube::{content_type::ContentType, observer::RequestObserver, pace::RequestPace};

/// The way to reach the API server.
#[derive(Clone, Debug)]
pub struct KubeConfig {
    /// The kubeconfig file; `None` means the service account of the pod that the program runs in,
    /// unless `master` is given.
    pub kubeconfig: Option<PathBuf>,
    /// The server's address, in place of the kubeconfig's.
    pub master: Option<String>,
    /// The value of the `User-Agent` header.
    pub user_agent: String,
    /// The form in which the server is asked for objects.
    pub content_type: ContentType,
    /// The rate at which requests may follow each other.
    pub pace: RequestPace,
    /// The time that the server may take.
    pub timing: Timing,
    /// Receives a report of each request.
    pub observer: Option<Arc<dyn RequestObserver>>,
    /// The value of the label `service.kubernetes.io/service-proxy-name` of the Services to watch;
    /// `None` for Services without the label. The node's configuration has the same
    /// (`NodeConfig::service_proxy_name`).
    pub service_proxy_name: Option<String>,
}

impl KubeConfig {
    /// Returns the configuration for the pod's service account, with the usual pace and timing.
    pub fn new(user_agent: impl Into<String>) -> Self {
        Self {
            kubeconfig: None,
            master: None,
            user_agent: user_agent.into(),
            content_type: ContentType::default(),
            pace: RequestPace::default(),
            timing: Timing::default(),
            observer: None,
            service_proxy_name: None,
        }
    }
}

/// The time that the server may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The silence after which a watch is opened again. 90 s by default: servers send a bookmark
    /// every 60 to 75 s, unless they know no newer version than that which the watch began at.
    pub idle: Duration,
    /// The time that the head of an answer may take; 30 s by default.
    pub response: Duration,
    /// The time that a list, or a page of a list, may take; 120 s by default.
    pub list: Duration,
    /// The time that the server should keep a watch open; 300 s by default. The time asked for is
    /// chosen at random between this and twice this, so that the nodes of a cluster do not come
    /// back together.
    pub watch: Duration,
    /// The interval at which an optional resource that is absent or forbidden is asked for; 300 s
    /// by default.
    pub absent: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(90),
            response: Duration::from_secs(30),
            list: Duration::from_secs(120),
            watch: Duration::from_secs(300),
            absent: Duration::from_secs(300),
        }
    }
}
