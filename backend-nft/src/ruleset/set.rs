//! Sets and maps, and the types of their fields.

use std::{borrow::Cow, time::Duration};

use super::SetName;

/// The type of one field of a key or of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// `ipv4_addr`
    Ipv4Addr,
    /// `ipv6_addr`
    Ipv6Addr,
    /// `inet_proto`
    InetProto,
    /// `inet_service`
    InetService,
    /// A slot number as `numgen` makes it: 32 bits in host byte order. It has no name that nft
    /// takes after `type`, so a set with such a field is declared with `typeof`.
    Slot,
}

impl Field {
    /// All types.
    pub const ALL: [Self; 5] =
        [Self::Ipv4Addr, Self::Ipv6Addr, Self::InetProto, Self::InetService, Self::Slot];

    /// The length of a value in bytes, without padding.
    pub fn width(self) -> usize {
        match self {
            Self::Ipv4Addr | Self::Slot => 4,
            Self::Ipv6Addr => 16,
            Self::InetProto => 1,
            Self::InetService => 2,
        }
    }

    /// The length in a concatenation: a multiple of four bytes.
    pub fn padded_width(self) -> usize {
        self.width().next_multiple_of(4)
    }
}

/// What a set's elements carry beside their key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SetData {
    /// Nothing: a set, not a map.
    None,
    /// A verdict: a verdict map.
    Verdict,
    /// A value, by its fields.
    Value(Vec<Field>),
}

/// The definition of a set or map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SetDef {
    /// The name.
    pub name: SetName,
    /// The fields of the key.
    pub key: Vec<Field>,
    /// What an element carries.
    pub data: SetData,
    /// If given, rules may add elements (`flags dynamic,timeout`), which disappear after this
    /// time without an update.
    pub timeout: Option<Duration>,
    /// A comment for people, cut to 64 bytes when written.
    pub comment: Option<Cow<'static, str>>,
}

impl SetDef {
    /// A set with this key.
    pub fn set(name: impl Into<SetName>, key: impl Into<Vec<Field>>) -> Self {
        Self {
            name: name.into(),
            key: key.into(),
            data: SetData::None,
            timeout: None,
            comment: None,
        }
    }

    /// A map from this key to verdicts.
    pub fn verdict_map(name: impl Into<SetName>, key: impl Into<Vec<Field>>) -> Self {
        Self { data: SetData::Verdict, ..Self::set(name, key) }
    }

    /// A map from this key to values.
    pub fn map(
        name: impl Into<SetName>,
        key: impl Into<Vec<Field>>,
        value: impl Into<Vec<Field>>,
    ) -> Self {
        Self { data: SetData::Value(value.into()), ..Self::set(name, key) }
    }

    /// A set to which rules add elements that disappear after `timeout`.
    pub fn dynamic_set(
        name: impl Into<SetName>,
        key: impl Into<Vec<Field>>,
        timeout: Duration,
    ) -> Self {
        Self { timeout: Some(timeout), ..Self::set(name, key) }
    }

    /// The same with a comment.
    pub fn with_comment(self, comment: impl Into<Cow<'static, str>>) -> Self {
        Self { comment: Some(comment.into()), ..self }
    }

    /// Whether it is a map.
    pub fn is_map(&self) -> bool {
        self.data != SetData::None
    }

    /// Whether nft declares it with `typeof`: it has a slot number in its key, or its data is a
    /// concatenation.
    pub fn is_typeof(&self) -> bool {
        self.key.contains(&Field::Slot)
            || matches!(&self.data, SetData::Value(fields) if fields.len() > 1)
    }

    /// The length of a key in bytes.
    pub fn key_len(&self) -> usize {
        concat_len(&self.key)
    }

    /// The length of a value in bytes; 0 without values.
    pub fn value_len(&self) -> usize {
        match &self.data {
            SetData::Value(fields) => concat_len(fields),
            SetData::None | SetData::Verdict => 0,
        }
    }

    /// Whether `other` holds the same kind of elements: everything but the comment is equal.
    pub fn same_shape(&self, other: &Self) -> bool {
        self.name == other.name
            && self.key == other.key
            && self.data == other.data
            && self.timeout == other.timeout
    }
}

/// The length of a value of these fields: one alone is not padded.
pub(crate) fn concat_len(fields: &[Field]) -> usize {
    match fields {
        [one] => one.width(),
        many => many.iter().map(|field| field.padded_width()).sum(),
    }
}
