//! The message and the fields of an event, and what the event's metadata say: its place in the
//! source, its verbosity, and whether the message is a whole line.

use std::{error::Error, fmt};

use serde_json::Value;
use switchyard_core::error::ErrorChain;
use tracing::{
    Event, Level, Metadata,
    field::{Field, Visit},
};

/// The message and the fields of an event.
#[derive(Default)]
pub(crate) struct Fields {
    pub(crate) message: String,
    /// The field `err` or `error`, if the event has one.
    pub(crate) err: Option<Value>,
    /// All other fields, in the order of the event.
    pub(crate) rest: Vec<(&'static str, Value)>,
}

impl Fields {
    pub(crate) fn from_event(event: &Event<'_>) -> Self {
        let mut fields = Self::default();
        event.record(&mut fields);
        fields
    }

    fn push(&mut self, field: &Field, value: impl Into<Value>) {
        match field.name() {
            // klog writes errors at their own place.
            "err" | "error" => self.err = Some(value.into()),
            name => self.rest.push((name, value.into())),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            _ => self.push(field, text),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.to_owned(),
            _ => self.push(field, value),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // Go prints a number without a fraction as an integer.
        match value.fract() == 0.0 && value.abs() < 1e15 {
            true => self.push(field, value as i64),
            false => self.push(field, value),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, value);
    }

    fn record_error(&mut self, field: &Field, error: &(dyn Error + 'static)) {
        self.push(field, ErrorChain(error).to_string());
    }
}

/// The place of an event in the source: the file below that many of its folders, and the line.
pub(crate) fn place(metadata: &Metadata<'_>, folders: usize) -> String {
    let path = metadata.file().unwrap_or("???");
    let start = path.rmatch_indices('/').nth(folders).map_or(0, |(slash, _)| slash + 1);
    format!("{}:{}", &path[start..], metadata.line().unwrap_or(1))
}

/// The lowest `-v` at which an event is logged. `tracing` has five levels, and klog has numbers:
/// the target of an event may end in a number, as in `switchyard_iptables::v5`; else the level
/// decides.
pub(crate) fn verbosity(metadata: &Metadata<'_>) -> u32 {
    let named = metadata.target().rsplit_once("::v").and_then(|(_, digits)| digits.parse().ok());
    named.unwrap_or(match *metadata.level() {
        Level::DEBUG => 2,
        Level::TRACE => 4,
        _ => 0,
    })
}

/// Whether the message of an event is written as a whole line, unquoted and without fields.
pub(crate) fn is_line(metadata: &Metadata<'_>) -> bool {
    metadata.target().contains("::line")
}
