//! Why a watch does not go on.

use std::{error::Error, time::Duration};

use kube::core::{Status, response::StatusDetails};

use super::decode::DecodeError;

/// The longest time that the server can make a watch wait.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// The longest message of an answer that is kept, in bytes.
const MAX_MESSAGE: usize = 1024;

/// Why a watch does not go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The receiver of the events was dropped.
    #[error("the receiver of the events was dropped")]
    ReceiverDropped,
    /// The server answered with an error.
    #[error("{} ({})", .0.message, .0.code)]
    Answer(Box<Status>),
    /// An object in the stream of an open watch is no event.
    #[error("an event cannot be decoded")]
    Undecodable(#[source] DecodeError),
    /// The stream of an open watch held an error.
    #[error("{} ({})", .0.message, .0.code)]
    Event(Box<Status>),
    /// The server could not be reached, or the connection broke. The error is no `source`: the
    /// texts of the client's errors repeat each other, and only the last cause says what happened.
    #[error("{}", last_cause(.0))]
    Connection(kube::Error),
    /// The answer is no list.
    #[error("the list cannot be decoded")]
    List(#[source] DecodeError),
    /// The server began to send a list, which did not arrive whole.
    #[error("the list was cut: {0}")]
    Cut(String),
    /// The server did not answer in time.
    #[error("the server did not answer within {} s", .0.as_secs_f32())]
    NoAnswer(Duration),
    /// The server sent nothing on an open watch.
    #[error("the server sent nothing for {} s", .0.as_secs_f32())]
    Silence(Duration),
    /// The server's newest version is older than one that the server, or an earlier one, has sent.
    #[error("the server's version went back from {from} to {to}")]
    WentBack { from: String, to: String },
    /// The watch ended as soon as it began.
    #[error("the watch ended at once")]
    EndedEarly,
    /// A streamed list ended before it was complete.
    #[error("the streamed list ended before it was complete")]
    Incomplete,
    /// An object or list has no version from which to watch.
    #[error("the server sent no resource version")]
    NoVersion,
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        Self::Connection(error)
    }
}

impl From<ReceiverDropped> for Failure {
    fn from(_: ReceiverDropped) -> Self {
        Self::ReceiverDropped
    }
}

impl Failure {
    /// Returns the failure of a request that the server refused. Any JSON object is read as a
    /// status, such as a gateway's.
    pub(super) fn refusal(mut status: Status) -> Self {
        if status.message.is_empty() {
            status.message = "an answer without a message".to_owned();
        }
        Self::Answer(clipped(status.boxed()))
    }

    /// Returns the failure of a list whose connection broke.
    pub(super) fn cut(error: kube::Error) -> Self {
        Self::Cut(last_cause(&error))
    }

    /// Returns the failure of an error in the stream of a watch.
    pub(super) fn event(status: Box<Status>) -> Self {
        Self::Event(clipped(status))
    }

    /// Whether the server began to send a list that did not arrive whole.
    pub(super) fn is_cut(&self) -> bool {
        matches!(self, Self::Cut(_))
    }

    fn status(&self) -> Option<&Status> {
        match self {
            Self::Answer(status) | Self::Event(status) => Some(status),
            _ => None,
        }
    }

    /// The HTTP status code; 0 if the server sent none.
    pub(super) fn code(&self) -> u16 {
        self.status().map_or(0, |status| status.code)
    }

    /// Whether the server no longer has the version, or does not have it yet (another server behind
    /// the same address is behind).
    pub(super) fn is_about_version(&self) -> bool {
        let is_too_large = |status: &Status| {
            status.code == 504 && status.message.contains("Too large resource version")
        };
        self.code() == 410
            || self.status().is_some_and(is_too_large)
            || matches!(self, Self::NoVersion | Self::WentBack { .. })
    }

    /// Whether the server answered, and with a failure that may last as long as the version is
    /// asked for. A failure of an overloaded server, of old credentials, or of a gateway does not
    /// last.
    pub(super) fn is_answered(&self) -> bool {
        match self {
            Self::Answer(status) if status.code == 0 => false,
            Self::Answer(_) | Self::Event(_) => !matches!(self.code(), 401 | 429 | 502 | 503 | 504),
            Self::Connection(error) => matches!(error, kube::Error::ReadEvents(_)),
            Self::Undecodable(_) | Self::List(_) | Self::EndedEarly | Self::Incomplete => true,
            Self::NoVersion | Self::WentBack { .. } => true,
            Self::ReceiverDropped | Self::Cut(_) | Self::NoAnswer(_) | Self::Silence(_) => false,
        }
    }

    /// Whether a streamed list failed in a way that has nothing to do with the load or the reach of
    /// the server, so that the list can be asked for in another way at once.
    pub(super) fn is_about_streaming(&self) -> bool {
        match self {
            Self::Answer(status) => {
                (400..500).contains(&status.code) && !matches!(status.code, 401 | 429)
            }
            Self::Event(status) => status.code != 429 && self.retry_after().is_zero(),
            Self::Incomplete | Self::Silence(_) => true,
            _ => false,
        }
    }

    /// The time that the server asks the client to wait, at most a minute.
    pub(super) fn retry_after(&self) -> Duration {
        let seconds = self
            .status()
            .and_then(|status| status.details.as_ref())
            .map_or(0, |details| details.retry_after_seconds);
        Duration::from_secs(u64::from(seconds)).min(MAX_RETRY_AFTER)
    }
}

/// Returns the details of a status that has these seconds to wait alone.
pub(super) fn details(retry_after_seconds: u32) -> StatusDetails {
    StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: Vec::new(),
        retry_after_seconds,
    }
}

/// Shortens the message, which is a gateway's whole page at worst.
fn clipped(mut status: Box<Status>) -> Box<Status> {
    status.message.truncate(status.message.floor_char_boundary(MAX_MESSAGE));
    status
}

fn last_cause(error: &kube::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// The receiver of the events was dropped.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiverDropped;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_sends_is_told_shortly() {
        let page = "é".repeat(MAX_MESSAGE);
        let status = || Status::failure(&page, "").with_code(502).boxed();
        for failure in [Failure::refusal(*status()), Failure::event(status())] {
            assert_eq!(failure.to_string().len(), MAX_MESSAGE + " (502)".len());
        }
        let other: Status = serde_json::from_str(r#"{"type": "UNKNOWN"}"#).unwrap();
        let failure = Failure::refusal(other);
        assert_eq!(failure.to_string(), "an answer without a message (0)");
    }
}
