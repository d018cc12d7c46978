//! klog's text: `I1121 09:08:59.667744    1234 file.rs:12] "Message" key="value"`

use std::{fmt, process};

use jiff::Zoned;
use serde_json::Value;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use super::fields::{Fields, place};

/// Formats events as klog does.
pub(super) struct Klog {
    process: u32,
}

impl Default for Klog {
    fn default() -> Self {
        Self { process: process::id() }
    }
}

impl<S, N> FormatEvent<S, N> for Klog
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
        let metadata = event.metadata();
        let severity = match *metadata.level() {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            _ => 'I',
        };
        let time = Zoned::now().strftime("%m%d %H:%M:%S%.6f").to_string();
        write!(line, "{severity}{time} {:>7} {}] ", self.process, place(metadata))?;
        let fields = Fields::of(event);
        write!(line, "{:?}", fields.message)?;
        for (key, value) in fields.rest {
            match value {
                Value::String(text) => write!(line, " {key}={text:?}")?,
                other => write!(line, " {key}={other}")?,
            }
        }
        writeln!(line)
    }
}
