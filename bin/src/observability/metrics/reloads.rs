//! The metrics of changes of the configuration file.

use prometheus::{IntCounterVec, IntGauge};

use super::maker::Maker;

/// The result of a change of the configuration file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// All changed fields were applied.
    Applied,
    /// The text changed, and no field did.
    Unchanged,
    /// The program ends, to be restarted with the new configuration.
    Restart,
    /// The new content was rejected.
    Rejected,
}

impl Reload {
    const ALL: [Self; 4] = [Self::Applied, Self::Unchanged, Self::Restart, Self::Rejected];

    fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Unchanged => "unchanged",
            Self::Restart => "restart",
            Self::Rejected => "rejected",
        }
    }
}

/// The metrics of the configuration file, which kube-proxy does not have.
pub struct ReloadMetrics {
    total: IntCounterVec,
    in_effect: IntGauge,
}

impl ReloadMetrics {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        let total = make.counters(
            "switchyard_config_reloads_total",
            "Changes of the configuration file's content, by result",
            &["result"],
        )?;
        // Every series exists from the start, so that the first count is an increase.
        for result in Reload::ALL {
            total.with_label_values(&[result.as_str()]);
        }
        let in_effect = make.gauge(
            "switchyard_config_in_effect",
            "1 if the content of the configuration file is in effect, 0 if it was rejected",
        )?;
        in_effect.set(1);
        Ok(Self { total, in_effect })
    }

    /// Counts a change of the file's content.
    pub fn reloaded(&self, result: Reload) {
        self.total.with_label_values(&[result.as_str()]).inc();
        let is_in_effect = matches!(result, Reload::Applied | Reload::Unchanged);
        self.in_effect.set(is_in_effect.into());
    }
}
