//! The message and the fields of an event, collected.

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
        self.rest.push((field.name(), value.into()));
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
        self.push(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, value);
    }

    fn record_error(&mut self, field: &Field, error: &(dyn Error + 'static)) {
        self.push(field, crate::error_chain(error));
    }
}

/// `file.rs:12`, without folders, as klog has it.
pub(super) fn place(metadata: &Metadata<'_>) -> String {
    let path = metadata.file().unwrap_or("???");
    let file = path.rsplit('/').next().unwrap_or(path);
    format!("{file}:{}", metadata.line().unwrap_or(1))
}

/// The `-v` at which messages of this level appear.
pub(super) fn verbosity(level: &Level) -> u32 {
    match *level {
        Level::DEBUG => 2,
        Level::TRACE => 4,
        _ => 0,
    }
}
