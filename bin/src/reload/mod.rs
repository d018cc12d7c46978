//! What happens when the content of the configuration file changes.
//!
//! kube-proxy ends, whatever the file says now. Here the file is read as it was at the start, with
//! the same flags, and then
//!
//! - if it cannot be used, that is told, and what was good stays in effect. Ending would mean to be
//!   started again and again with it, and a node whose Services are not followed meanwhile;
//! - if nothing differs but how it is written, nothing happens;
//! - if all fields that differ can be applied while the program runs ([`fields`]), they are;
//! - otherwise the program ends as kube-proxy does, to be started again by whoever supervises it.

pub mod fields;

use std::{future::pending, sync::Arc, time::Duration};

use proxy_core::runner::Input;
use tokio::{
    sync::{mpsc::Sender, watch},
    task, time,
};

use self::fields::{Change, Effect};
use crate::{
    config::{
        self, ConfigError, Loaded,
        settings::{PeriodSettings, ServerSettings, Settings},
        v1alpha1::KubeProxyConfiguration,
    },
    config_watch::{self, Content},
    events::{Event, Recorder},
    feed::{self, FeedError},
    flags::Flags,
    health::ProxyHealth,
    http::{metrics::Shown, moving::Place},
    logging,
    metrics::{Metrics, Reload},
    node::discovery::{Discovery, DiscoveryError, Known},
    run,
    select::{self, NoMode},
    sysctl,
};

/// How often a file that was rejected is tried again: it may be the node that is not ready for it.
const RETRY: Duration = Duration::from_secs(10);

/// Why a configuration is rejected.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    /// It cannot be read, or makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It asks for a mode that this node cannot run.
    #[error(transparent)]
    Mode(#[from] NoMode),
    /// It names an API server that cannot be asked.
    #[error(transparent)]
    Source(#[from] FeedError),
    /// It does not fit the node.
    #[error(transparent)]
    Node(#[from] DiscoveryError),
}

/// Where the servers of these settings are.
pub fn places(servers: &ServerSettings) -> [Place; 2] {
    [servers.healthz, Some(servers.metrics)]
        .map(|address| Place { address, hard_fail: servers.bind_hard_fail })
}

/// The parts of the running program that can be told something else.
pub struct Parts {
    /// The engine.
    pub inputs: Sender<Input>,
    /// What says whether it keeps up.
    pub health: Arc<ProxyHealth>,
    /// The servers: of health, of metrics.
    pub places: [watch::Sender<Place>; 2],
    /// What is shown of the configuration.
    pub shown: watch::Sender<Shown>,
    /// Told what becomes of changes.
    pub metrics: Arc<Metrics>,
    /// Takes Events.
    pub recorder: Recorder,
    /// What is known of the Node.
    pub node: watch::Receiver<Known>,
}

/// See the [module's documentation](self).
pub struct Reloader {
    flags: Flags,
    config: KubeProxyConfiguration,
    settings: Settings,
    /// What has been said already.
    warnings: Vec<String>,
    parts: Parts,
}

impl Reloader {
    /// The program runs with these settings, made from what was loaded with these flags.
    pub fn new(flags: Flags, loaded: &Loaded, settings: Settings, parts: Parts) -> Self {
        let (config, warnings) = (loaded.config.clone(), loaded.warnings.clone());
        Self { flags, config, settings, warnings, parts }
    }

    /// Applies changes of the file's content until there is one that needs another start. Without a
    /// file there are none.
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
            let loaded = match self.load().await {
                Ok(loaded) => loaded,
                Err(rejection) => {
                    let why = crate::error_chain(&rejection);
                    if content.is_some() || rejected.as_ref() != Some(&why) {
                        self.reject(why.clone());
                    }
                    rejected = Some(why);
                    known = content.unwrap_or(known);
                    continue;
                }
            };
            rejected = None;
            // It may have changed again before it was read.
            if let Some(file) = &loaded.settings.config_file {
                known = Content::from(&*file.text);
            }
            if self.take_in(loaded).await == Reload::Restart {
                return;
            }
        }
    }

    /// Loads the file; the settings are those of the mode that runs. What would make another start
    /// fail is refused, as far as that can be known: it would fail again and again.
    async fn load(&self) -> Result<Loaded, Rejection> {
        let mut loaded = config::load(&self.flags)?;
        if loaded.settings.source != self.settings.source {
            feed::check(&loaded.settings.source).await?;
        }
        if loaded.config.mode == self.config.mode {
            loaded.settings = loaded.with_mode(self.settings.backend.mode)?;
            self.check_node(&loaded)?;
            return Ok(loaded);
        }
        let (named, backend) = (loaded.named_mode(), loaded.settings.backend.clone());
        let choose = move || select::choose(named, |mode| select::probe(mode, &backend));
        // That it panicked is no reason to stay.
        if let Ok(chosen) = task::spawn_blocking(choose).await {
            chosen?;
        }
        Ok(loaded)
    }

    /// Holds the configuration against the node as the start would. Of another node nothing is known.
    fn check_node(&self, loaded: &Loaded) -> Result<(), DiscoveryError> {
        if loaded.config.hostname_override != self.config.hostname_override {
            return Ok(());
        }
        let known = self.parts.node.borrow().clone();
        if let Some(facts) = known {
            Discovery::of(&loaded.config, &loaded.settings).check(facts.as_ref())?;
        }
        Ok(())
    }

    fn reject(&self, why: String) {
        tracing::error!(
            err = why.as_str(),
            "The configuration file cannot be used; what was good stays in effect"
        );
        self.parts.metrics.config_reloaded(Reload::Rejected);
        self.parts.recorder.record(Event::configuration_rejected(why));
    }

    async fn take_in(&mut self, loaded: Loaded) -> Reload {
        for warning in loaded.warnings.iter().filter(|text| !self.warnings.contains(text)) {
            tracing::warn!(warning = warning.as_str(), "Doubtful configuration");
        }
        let changes = fields::changes(&self.config, &loaded.config, self.settings.backend.mode);
        for Change { path, from, to, .. } in &changes {
            tracing::info!(field = path.as_str(), %from, %to, "Configuration changed");
        }
        // What the Node is waited for at the start depends on the configuration.
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
            tracing::info!(
                fields,
                "These fields cannot be changed now: the program has to be started again"
            );
            Reload::Restart
        } else if changes.is_empty() {
            tracing::info!("The configuration file was written anew and says the same");
            Reload::Unchanged
        } else {
            self.apply(loaded).await;
            tracing::info!("The configuration was applied");
            Reload::Applied
        };
        self.parts.metrics.config_reloaded(result);
        result
    }

    /// Applies settings that differ only in what can be applied.
    async fn apply(&mut self, loaded: Loaded) {
        let Loaded { mut settings, config, warnings, .. } = loaded;
        // The host may have another name meanwhile; the node has not.
        settings.node.node_name.clone_from(&self.settings.node.node_name);
        let before = &self.settings;
        if settings.log != before.log {
            logging::set_levels(&settings.log);
        }
        if settings.conntrack != before.conntrack
            && let Some(conntrack) = settings.conntrack
        {
            let set = move || sysctl::Kernel::default().set_conntrack(&conntrack);
            if let Ok(Err(error)) = task::spawn_blocking(set).await {
                let why = crate::error_chain(&error);
                tracing::error!(err = why, "Connection tracking keeps its limits and timeouts");
            }
        }
        if settings.oom_score_adj != before.oom_score_adj
            && let Some(score) = settings.oom_score_adj
        {
            sysctl::set_oom_score_adj(score);
        }
        if settings.periods != before.periods {
            self.tell(Input::Timing(run::runner_config(&settings.periods))).await;
            self.parts.health.set_timeout(patience(&settings.periods));
        }
        if settings.node != before.node {
            self.tell(Input::Node(settings.node.clone())).await;
        }
        for (sender, place) in self.parts.places.iter().zip(places(&settings.servers)) {
            sender.send_if_modified(|current| std::mem::replace(current, place) != place);
        }
        self.parts.metrics.set_gates(&config.feature_gates);
        self.parts.shown.send_replace(Shown::new(&settings, &config));
        (self.settings, self.config, self.warnings) = (settings, config, warnings);
    }

    async fn tell(&self, input: Input) {
        // That the engine has ended is noticed elsewhere.
        let _ = self.parts.inputs.send(input).await;
    }
}

/// How long a sync may be waited for.
pub fn patience(periods: &PeriodSettings) -> Duration {
    2 * periods.sync
}
