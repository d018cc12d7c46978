//! Times of objects.

use std::borrow::Cow;

use prost::Message;
use serde::{Deserialize, Deserializer};

/// A time, in whole seconds: RFC 3339 in JSON, `meta/v1` Time in protobuf. Times that cannot be
/// read are unknown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Message)]
pub struct Timestamp {
    /// Seconds since 1970; 0 if unknown, as in the empty message that stands for `null`.
    #[prost(int64, tag = "1")]
    seconds: i64,
}

impl Timestamp {
    /// Returns the time so many seconds after the beginning of 1970.
    pub fn from_seconds(seconds: i64) -> Self {
        Self { seconds }
    }

    /// Whether the object does not have the time, or not in a form that can be read.
    pub fn is_unknown(self) -> bool {
        self.seconds == 0
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Ok(Self::from_seconds(text.parse().map_or(0, jiff::Timestamp::as_second)))
    }
}
