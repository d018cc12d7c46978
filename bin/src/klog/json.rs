//! The JSON of Kubernetes' components:
//! `{"ts":1700000000000.1,"caller":"src/file.rs:12","msg":"Message","v":0,"key":"value"}`

use std::fmt::{self, Write};

use jiff::Timestamp;
use serde_json::Value;
use tracing::{Event, Level};

use crate::klog::fields::{Fields, place, verbosity};

/// Writes an event in the JSON format of zap, as Kubernetes' components configure it: times are
/// milliseconds since 1970, and the caller has its folder.
pub(super) fn write_event(line: &mut impl Write, event: &Event<'_>) -> fmt::Result {
    let metadata = event.metadata();
    let milliseconds = Timestamp::now().as_nanosecond() as f64 / 1e6;
    let fields = Fields::from_event(event);
    write!(line, "{{\"ts\":{milliseconds}")?;
    pair(line, "caller", &place(metadata, 1).into())?;
    pair(line, "msg", &fields.message.into())?;
    // Errors have no verbosity in klog.
    if *metadata.level() != Level::ERROR {
        pair(line, "v", &verbosity(metadata).into())?;
    }
    let err = fields.err.as_ref().map(|err| ("err", err));
    for (key, value) in fields.rest.iter().map(|(key, value)| (*key, value)).chain(err) {
        pair(line, key, value)?;
    }
    writeln!(line, "}}")
}

fn pair(line: &mut impl Write, key: &str, value: &Value) -> fmt::Result {
    write!(line, ",{}:{value}", Value::from(key))
}
