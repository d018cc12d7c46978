//! What became of the configuration file each time its content changed.

use prometheus::{IntCounterVec, IntGauge};

use super::maker::Maker;

/// What became of a change of the configuration file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// All that differs was applied.
    Applied,
    /// Nothing differs but how it is written.
    Unchanged,
    /// The program ends, to be started again with it.
    Restart,
    /// It cannot be used.
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

/// Ours, about the configuration file.
pub(super) struct ReloadMetrics {
    total: IntCounterVec,
    in_effect: IntGauge,
}

impl ReloadMetrics {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        let total = make.counters(
            "switchyard_config_reloads_total",
            "Changes of the configuration file's content, by what became of them",
            &["result"],
        )?;
        // So that the first one is an increase.
        for result in Reload::ALL {
            total.with_label_values(&[result.as_str()]);
        }
        let in_effect = make.gauge(
            "switchyard_config_in_effect",
            "1 if what the configuration file says is in effect, 0 if it was rejected",
        )?;
        in_effect.set(1);
        Ok(Self { total, in_effect })
    }

    pub(super) fn reloaded(&self, result: Reload) {
        self.total.with_label_values(&[result.as_str()]).inc();
        let is_in_effect = matches!(result, Reload::Applied | Reload::Unchanged);
        self.in_effect.set(is_in_effect.into());
    }
}
