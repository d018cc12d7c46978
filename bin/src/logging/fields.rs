//! The message and the fields of an event, collected; and what its place in the source says.

use std::{error::Error, fmt};

use serde_json::Value;
use tracing::{
    Event, Level, Metadata,
    field::{Field, Visit},
};

/// What an event says.
#[derive(Default)]
pub(super) struct Fields {
    /// Its message.
    pub(super) message: String,
    /// What went wrong, if it says so.
    pub(super) err: Option<Value>,
    /// Everything else, in the order in which it was written.
    pub(super) rest: Vec<(&'static str, Value)>,
}

impl Fields {
    pub(super) fn of(event: &Event<'_>) -> Self {
        let mut fields = Self::default();
        event.record(&mut fields);
        fields
    }

    fn push(&mut self, field: &Field, value: impl Into<Value>) {
        match field.name() {
            // klog has a place of its own for it.
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
        // Without a fraction, Go prints none.
        match value.fract() == 0.0 && value.abs() < 1e15 {
            true => self.push(field, value as i64),
            false => self.push(field, value),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, value);
    }

    fn record_error(&mut self, field: &Field, error: &(dyn Error + 'static)) {
        self.push(field, crate::error_chain(error));
    }
}

/// Where an event is in the source: the file, with so many folders, and the line.
pub(super) fn place(metadata: &Metadata<'_>, folders: usize) -> String {
    let path = metadata.file().unwrap_or("???");
    let start = path.rmatch_indices('/').nth(folders).map_or(0, |(slash, _)| slash + 1);
    format!("{}:{}", &path[start..], metadata.line().unwrap_or(1))
}

/// The `-v` at which an event appears. `tracing` has five levels and klog has numbers: the target
/// of an event may end in one, as in `backend_iptables::v5`; else its level says it.
pub(super) fn verbosity(metadata: &Metadata<'_>) -> u32 {
    let named = metadata.target().rsplit_once("::v").and_then(|(_, digits)| digits.parse().ok());
    named.unwrap_or(match *metadata.level() {
        Level::DEBUG => 2,
        Level::TRACE => 4,
        _ => 0,
    })
}

/// Whether the message of an event is a whole line: not quoted, and without fields.
pub(super) fn is_line(metadata: &Metadata<'_>) -> bool {
    metadata.target().contains("::line")
}
