//! The reaction to changes of the configuration file: the file is loaded with the flags of the
//! start, and the changed fields are applied, or the program ends, as kube-proxy does at every
//! change. An unusable file is rejected: a program that ended would be restarted with that file
//! again and again, and would not follow the node's Services meanwhile.

pub mod fields;

use std::{future::pending, io, net::SocketAddr, sync::Arc, time::Duration};

use switchyard::Handle;
use switchyard_core::{error::ErrorChain, model::PerFamily, runner::Input};
use tokio::{sync::watch, task, time};

use self::fields::{Change, Effect};
use crate::config::{
    ConfigError, Loaded,
    flags::Flags,
    settings::{ConntrackSettings, Settings},
    v1alpha1::KubeProxyConfiguration,
    watch::{self as config_watch, Content},
};
use crate::observability::{
    http::{
        metrics::ConfigPages,
        rebind::{self, Bound, ServerAddress},
    },
    metrics::{Metrics, Reload},
};
use crate::{
    backends, logging,
    node::watch::{KnownNode, NodeChecks, NodeError},
    node_events::{Event, Recorder},
    process,
    select::{self, NoMode},
    source_task::{self, SourceError},
    sysctl::{self, SysctlError},
};

/// The wait before a rejected file is tried again: the node may have been the reason.
const RETRY: Duration = Duration::from_secs(10);

/// Why a changed configuration is rejected.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    /// The file cannot be read, or has an invalid field.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// This node cannot run the configured mode.
    #[error(transparent)]
    Mode(#[from] NoMode),
    /// The client of the API server cannot be configured so.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A field does not fit the Node.
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error("could not set conntrack parameters from kube-proxy configuration")]
    Conntrack(#[from] SysctlError),
    /// An address cannot be bound, which would be fatal with `bindAddressHardFail`.
    #[error("cannot serve at {0}")]
    Server(SocketAddr, #[source] io::Error),
}

/// The parts of the running program to which a change is applied.
pub struct LiveParts {
    pub proxy: Handle,
    /// The addresses of the health server and of the metrics server.
    pub addresses: watch::Sender<[ServerAddress; 2]>,
    /// The addresses at which they serve.
    pub bound: watch::Receiver<Bound<2>>,
    /// The pages that show the configuration.
    pub pages: watch::Sender<ConfigPages>,
    /// The metrics, which count changes by result.
    pub metrics: Arc<Metrics>,
    /// The recorder of Events.
    pub recorder: Recorder,
    /// The last known facts of the Node.
    pub node: watch::Receiver<KnownNode>,
    /// The families that the backend programs.
    pub supported: PerFamily<bool>,
}

/// The task that reacts to changes. See the [module's documentation](self).
pub struct Reloader {
    flags: Flags,
    config: KubeProxyConfiguration,
    settings: Settings,
    /// The warnings that are in the log already.
    warnings: Vec<String>,
    /// The doubts about the last file that was checked, which are in the log already.
    doubts: Vec<String>,
    /// The settings of connection tracking that the kernel has; `None` if unknown, after a failure.
    conntrack: Option<ConntrackSettings>,
    parts: LiveParts,
}

impl Reloader {
    /// Returns a reloader for a program that runs with `settings`, where `loaded` is the
    /// configuration that `flags` led to.
    pub fn new(flags: Flags, loaded: &Loaded, settings: Settings, parts: LiveParts) -> Self {
        let (config, warnings) = (loaded.config.clone(), loaded.warnings.clone());
        let conntrack = settings.conntrack;
        Self { flags, config, settings, warnings, doubts: Vec::new(), conntrack, parts }
    }

    /// Applies changes of the file until a change requires a restart. Waits for ever if there is no
    /// file.
    pub async fn run(mut self) {
        let Some(file) = self.settings.config_file.clone() else { pending().await };
        let mut known = Content::from(&*file.text);
        let mut rejected: Option<String> = None;
        loop {
            let changed = config_watch::changed(&file.path, &known);
            let content = match &rejected {
                None => Some(changed.await),
                Some(_) => time::timeout(RETRY, changed).await.ok(),
            };
            let expected = content.as_ref().unwrap_or(&known);
            let loaded = match self.load().await {
                Ok(loaded) => {
                    // Half-written content may be valid: only what stayed for a while counts.
                    let file = loaded.settings.config_file.as_ref();
                    if file.map(|file| Content::from(&*file.text)).as_ref() != Some(expected) {
                        continue;
                    }
                    self.set_conntrack(&loaded.settings).await.map(|()| loaded)
                }
                // It is being written.
                Err(_) if !config_watch::is(&file.path, expected) => continue,
                Err(rejection) => Err(rejection),
            };
            let is_new = content.is_some();
            known = content.unwrap_or(known);
            let loaded = match loaded {
                Ok(loaded) => loaded,
                Err(rejection) => {
                    let why = ErrorChain(&rejection).to_string();
                    if is_new || rejected.as_ref() != Some(&why) {
                        self.reject(why.clone());
                    }
                    rejected = Some(why);
                    continue;
                }
            };
            rejected = None;
            if self.apply_file(loaded).await == Reload::Restart {
                return;
            }
        }
    }

    /// Loads the file, with the settings of the mode that runs. Rejects a file with which a start
    /// would fail, as far as this program can find out: it would fail again and again.
    async fn load(&mut self) -> Result<Loaded, Rejection> {
        let mut loaded = crate::config::load(&self.flags, &backends::MODES)?;
        if loaded.settings.source != self.settings.source {
            source_task::check(&loaded.settings.source).await?;
        }
        let addresses = rebind::addresses(&loaded.settings.servers);
        rebind::check(&addresses, &self.parts.bound.borrow())
            .map_err(|(address, error)| Rejection::Server(address, error))?;
        if loaded.config.mode == self.config.mode {
            loaded.settings = loaded.with_mode(self.settings.backend.mode)?;
            self.check_node(&loaded)?;
            return Ok(loaded);
        }
        let backends = backends::all(&loaded, &Default::default(), &Default::default())?;
        let named = loaded.named_mode();
        let choose = move || select::choose(named, |mode| select::probe(&backends, mode));
        // After a panic the start decides.
        if let Ok(chosen) = task::spawn_blocking(choose).await {
            chosen?;
        }
        Ok(loaded)
    }

    /// Checks the configuration against the Node as the start would. Another Node's name is not
    /// checked: nothing is known about that Node.
    fn check_node(&mut self, loaded: &Loaded) -> Result<(), NodeError> {
        if loaded.config.hostname_override != self.config.hostname_override {
            return Ok(());
        }
        let known = self.parts.node.borrow().clone();
        if let Some(facts) = known {
            let supported = self.parts.supported;
            let checks = NodeChecks::new(&loaded.config, &loaded.settings, supported);
            checks.check(facts.as_ref(), &mut self.doubts)?;
        }
        Ok(())
    }

    /// Makes the settings of connection tracking that a file changes, before the rest of the file
    /// is applied. Returns the failure that would end the next start, too.
    async fn set_conntrack(&mut self, settings: &Settings) -> Result<(), Rejection> {
        let Some(conntrack) = settings.conntrack else { return Ok(()) };
        // Those of a file that was rejected may be made in part.
        if self.conntrack.take() == Some(conntrack) {
            self.conntrack = Some(conntrack);
            return Ok(());
        }
        let set = move || sysctl::Kernel::default().set_conntrack(&conntrack);
        match task::spawn_blocking(set).await {
            Ok(Err(error)) if conntrack.is_asked_for => Err(error.into()),
            Ok(Err(error)) => {
                let err = ErrorChain(&error);
                tracing::error!(%err, "Failed to set conntrack limits and timeouts");
                Ok(())
            }
            Ok(Ok(())) => {
                self.conntrack = Some(conntrack);
                Ok(())
            }
            // After a panic the start decides.
            Err(_) => Ok(()),
        }
    }

    fn reject(&self, why: String) {
        tracing::error!(
            err = why.as_str(),
            "Invalid configuration file; keeping the previous configuration"
        );
        self.parts.metrics.reloads.reloaded(Reload::Rejected);
        self.parts.recorder.record(Event::configuration_rejected(why));
    }

    /// Applies a loaded file, unless a changed field requires a restart. Returns what was done.
    async fn apply_file(&mut self, loaded: Loaded) -> Reload {
        for warning in loaded.warnings.iter().filter(|text| !self.warnings.contains(text)) {
            tracing::warn!(warning = warning.as_str(), "Configuration warning");
        }
        let changes = fields::changes(&self.config, &loaded.config, self.settings.backend.mode);
        for Change { path, from, to, .. } in &changes {
            tracing::info!(field = path.as_str(), %from, %to, "Configuration changed");
        }
        // What the start waits for depends on the configuration.
        let is_starting = self.parts.node.borrow().is_none();
        let needs_restart = |change: &&Change| match change.effect {
            Effect::Nothing => false,
            Effect::Live => is_starting,
            Effect::Restart | Effect::LiveWithinFamily => true,
        };
        let blocking: Vec<&str> =
            changes.iter().filter(needs_restart).map(|change| change.path.as_str()).collect();
        let result = if !blocking.is_empty() {
            let fields = blocking.join(", ");
            tracing::info!(fields, "Changes to these fields need a restart");
            Reload::Restart
        } else if changes.is_empty() {
            tracing::info!("Configuration file rewritten without changes");
            Reload::Unchanged
        } else {
            self.apply(loaded).await;
            tracing::info!("Configuration applied");
            Reload::Applied
        };
        self.parts.metrics.reloads.reloaded(result);
        result
    }

    /// Applies settings that differ only in fields that can be changed while the program runs.
    async fn apply(&mut self, loaded: Loaded) {
        let Loaded { mut settings, config, warnings, .. } = loaded;
        // The host may have a new name, but the Node keeps its name.
        settings.node.node_name.clone_from(&self.settings.node.node_name);
        let before = &self.settings;
        if settings.log != before.log {
            logging::set_levels(&settings.log);
        }
        let is_liberal = |settings: &Settings| settings.conntrack.is_some_and(|c| c.tcp_be_liberal);
        if is_liberal(&settings) && !is_liberal(before) {
            // Rules of iptables mode depend on the setting.
            let _ = self.parts.proxy.send(Input::Compare).await;
        }
        if settings.oom_score_adj != before.oom_score_adj
            && let Some(score) = settings.oom_score_adj
        {
            process::set_oom_score_adj(score);
        }
        // The program ends by itself when the proxy has ended.
        if settings.periods != before.periods {
            let _ = self.parts.proxy.set_timing(settings.periods.runner_config()).await;
        }
        let localhost = settings.node.localhost_node_ports;
        if localhost != before.node.localhost_node_ports {
            let _ = self.parts.proxy.set_localhost(localhost).await;
        }
        let _ = self.parts.proxy.set_node(settings.node.clone()).await;
        let addresses = rebind::addresses(&settings.servers);
        let changed = |current: &mut _| std::mem::replace(current, addresses) != addresses;
        self.parts.addresses.send_if_modified(changed);
        self.parts.metrics.set_gates(&config.feature_gates);
        self.parts.pages.send_replace(ConfigPages::new(&settings, &config));
        (self.settings, self.config, self.warnings) = (settings, config, warnings);
    }
}
