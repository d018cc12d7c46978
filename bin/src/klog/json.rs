//! The JSON of Kubernetes' components:
//! `{"ts":1700000000000.1,"caller":"src/file.rs:12","msg":"Message","v":0,"key":"value"}`

use std::fmt;

use jiff::Timestamp;
use serde_json::Value;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use crate::klog::fields::{Fields, place, verbosity};

/// The JSON format of zap, as Kubernetes' components configure it: times are milliseconds since
/// 1970, and the caller has its folder.
pub(crate) struct Json;

impl<S, N> FormatEvent<S, N> for Json
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
        let milliseconds = Timestamp::now().as_nanosecond() as f64 / 1e6;
        let fields = Fields::from_event(event);
        write!(line, "{{\"ts\":{milliseconds}")?;
        pair(&mut line, "caller", &place(metadata, 1).into())?;
        pair(&mut line, "msg", &fields.message.into())?;
        // Errors have no verbosity in klog.
        if *metadata.level() != Level::ERROR {
            pair(&mut line, "v", &verbosity(metadata).into())?;
        }
        let err = fields.err.as_ref().map(|err| ("err", err));
        for (key, value) in fields.rest.iter().map(|(key, value)| (*key, value)).chain(err) {
            pair(&mut line, key, value)?;
        }
        writeln!(line, "}}")
    }
}

fn pair(line: &mut Writer<'_>, key: &str, value: &Value) -> fmt::Result {
    write!(line, ",{}:{value}", Value::from(key))
}
