//! The log of a process in the formats of klog, Kubernetes' log library, for events of `tracing`.
//! Programs that read kube-proxy's logs can read these.
//!
//! [`start`] sends the events of the whole process to a log. [`Log`], the handle that it returns,
//! changes what is logged, and writes the lines that wait in a buffer.
//!
//! The target of an event carries what klog knows and `tracing` does not. `::v` and a number at its
//! end, as in `switchyard_core::v5`, are the verbosity of the event; without the two, the level
//! decides: 0 for INFO and worse, 2 for DEBUG, 4 for TRACE. An event whose target has `::line` is
//! written as the message alone, unquoted and without fields.

mod config;
mod fields;
mod json;
mod streams;
#[cfg(test)]
pub(crate) mod tests;
mod text;
mod verbosity;

use std::{fmt, io};

use tracing::{Event, Subscriber};
use tracing_subscriber::{
    Layer,
    fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer},
    layer::SubscriberExt,
    registry::{LookupSpan, Registry},
    reload,
};

pub use self::config::{LogConfig, LogFormat};
use self::{streams::Streams, verbosity::Verbosity};

/// Why a log could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The process has a subscriber for its events already.
    #[error("cannot initialize logging")]
    Twice(#[from] tracing::subscriber::SetGlobalDefaultError),
    /// The thread that writes buffered lines could not be started.
    #[error("cannot start a thread for the log")]
    Thread(#[from] io::Error),
}

/// The handle of a log that was started.
pub struct Log {
    filter: reload::Handle<Verbosity, Registry>,
    streams: Streams,
}

impl Log {
    /// Writes the lines that wait in a buffer. Call this before the program ends.
    pub fn flush(&self) {
        self.streams.flush();
    }

    /// Logs what `-v` with this value lets through, from now on; `--vmodule` stays as it is.
    /// Returns false if the log is gone.
    pub fn set_verbosity(&self, verbosity: u32) -> bool {
        self.filter.modify(|filter| filter.set(verbosity)).is_ok()
    }

    /// Logs what the verbosity and the `vmodule` of `config` let through, from now on. The other
    /// fields have no effect. Returns false if the log is gone.
    pub fn set_levels(&self, config: &LogConfig) -> bool {
        self.filter.modify(|filter| *filter = Verbosity::new(config)).is_ok()
    }
}

/// Starts this process's log. Only a program's `main` should call it, once: the log takes the
/// events of every thread.
pub fn start(config: &LogConfig) -> Result<Log, LogError> {
    let streams = Streams::open(config)?;
    let (subscriber, filter) = with_handle(config, streams.clone());
    tracing::subscriber::set_global_default(subscriber)?;
    Ok(Log { filter, streams })
}

/// Returns a subscriber that writes to `writer`. Streams and buffers of `config` have no effect.
#[cfg(test)]
fn subscriber<W>(config: &LogConfig, writer: W) -> impl Subscriber + Send + Sync + use<W>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    with_handle(config, writer).0
}

/// Returns a subscriber, and a handle that changes its filter.
fn with_handle<W>(
    config: &LogConfig,
    writer: W,
) -> (impl Subscriber + Send + Sync + use<W>, reload::Handle<Verbosity, Registry>)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).event_format(config.format);
    let (filter, handle) = reload::Layer::new(Verbosity::new(config));
    (Registry::default().with(layer.with_filter(filter)), handle)
}

impl<S, N> FormatEvent<S, N> for LogFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match self {
            Self::Text => text::write_event(&mut line, event),
            Self::Json => json::write_event(&mut line, event),
        }
    }
}
