//! Sets and maps, and the types of their fields.

use std::{borrow::Cow, time::Duration};

use switchyard_model::Protocol;

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
    /// The port of one protocol. It is an `inet_service` like any other, but `typeof` declares it
    /// as `tcp dport`: nft (seen with 1.1.3) refuses to add a rule over a map whose data was
    /// declared as `th dport`, once the map is committed.
    Port(Protocol),
    /// A slot number as `numgen` and `jhash` make it: 32 bits in host byte order. nft has no name
    /// for this type, so a set with such a field is declared with `typeof`, by `numgen` whichever
    /// of them rules use: nft (seen with 1.0.6 and 1.1.3) crashes when it lists a set that was
    /// declared by `jhash`.
    Slot,
}

impl Field {
    /// The types by which the kernel and nft tell fields apart: all but [`Field::Port`], which is
    /// an [`Field::InetService`] to them.
    pub const TYPES: [Self; 5] =
        [Self::Ipv4Addr, Self::Ipv6Addr, Self::InetProto, Self::InetService, Self::Slot];

    /// The length of a value of this type in bytes, without padding.
    pub fn width(self) -> usize {
        match self {
            Self::Ipv4Addr | Self::Slot => 4,
            Self::Ipv6Addr => 16,
            Self::InetProto => 1,
            Self::InetService | Self::Port(_) => 2,
        }
    }

    /// The same field as the kernel knows it.
    fn of_type(self) -> Self {
        match self {
            Self::Port(_) => Self::InetService,
            other => other,
        }
    }

    /// The length of a value of this type in a concatenation: a multiple of four bytes.
    pub fn padded_width(self) -> usize {
        self.width().next_multiple_of(4)
    }
}

/// The kind of data that the elements of a set carry beside their key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SetData {
    /// Nothing: a set, not a map.
    None,
    /// A verdict: a verdict map.
    Verdict,
    /// A value with these fields.
    Value(Vec<Field>),
}

/// The definition of a set or map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SetDef {
    /// The name.
    pub name: SetName,
    /// The fields of the key.
    pub key: Vec<Field>,
    /// The data of an element.
    pub data: SetData,
    /// If given, rules may add elements (`flags dynamic,timeout`), and an element disappears when
    /// it was not updated for this time. Whole seconds.
    pub timeout: Option<Duration>,
    /// The most elements. If none is given, a map with a timeout has the kernel's default of 65,535
    /// as soon as a rule adds elements to it. The kernel makes a new set large enough for this
    /// number at once, so that a large number costs memory: 16 bytes for each element, until the
    /// first element is removed. Since kernel 6.5, adding a set that exists changes its number, at
    /// no such cost.
    pub size: Option<u32>,
    /// Whether an element is an interval of addresses (`flags interval`), which
    /// [`super::Key::interval`] makes. Only for sets without data and timeout, whose key is one
    /// address.
    pub interval: bool,
    /// A comment for people, cut to 64 bytes when written.
    pub comment: Option<Cow<'static, str>>,
}

impl SetDef {
    /// Returns a set with this key.
    pub fn set(name: impl Into<SetName>, key: impl Into<Vec<Field>>) -> Self {
        Self {
            name: name.into(),
            key: key.into(),
            data: SetData::None,
            timeout: None,
            size: None,
            interval: false,
            comment: None,
        }
    }

    /// Returns a map from this key to verdicts.
    pub fn verdict_map(name: impl Into<SetName>, key: impl Into<Vec<Field>>) -> Self {
        Self { data: SetData::Verdict, ..Self::set(name, key) }
    }

    /// Returns a map from this key to values.
    pub fn map(
        name: impl Into<SetName>,
        key: impl Into<Vec<Field>>,
        value: impl Into<Vec<Field>>,
    ) -> Self {
        Self { data: SetData::Value(value.into()), ..Self::set(name, key) }
    }

    /// Lets rules add elements, which disappear after `timeout`, in whole seconds.
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Limits the number of elements.
    pub fn with_size(self, size: u32) -> Self {
        Self { size: Some(size), ..self }
    }

    /// Returns a set of intervals of addresses, which have the type `address`.
    pub fn interval_set(name: impl Into<SetName>, address: Field) -> Self {
        Self { interval: true, ..Self::set(name, [address]) }
    }

    /// Adds a comment.
    pub fn with_comment(self, comment: impl Into<Cow<'static, str>>) -> Self {
        Self { comment: Some(comment.into()), ..self }
    }

    /// Whether this is a map.
    pub fn is_map(&self) -> bool {
        self.data != SetData::None
    }

    /// Whether nft declares the set with `typeof`: its key has a slot number, or its data is a
    /// concatenation.
    pub fn is_typeof(&self) -> bool {
        self.key.contains(&Field::Slot)
            || matches!(&self.data, SetData::Value(fields) if fields.len() > 1)
    }

    /// Whether this is a set of addresses, which may be a set of intervals.
    pub(crate) fn has_addresses(&self) -> bool {
        matches!(self.key[..], [Field::Ipv4Addr | Field::Ipv6Addr])
            && self.data == SetData::None
            && self.timeout.is_none()
    }

    /// The length of a key in bytes, or of each end of an interval.
    pub fn key_len(&self) -> usize {
        concat_len(&self.key)
    }

    /// The length of a value in bytes; 0 for a set and for a verdict map.
    pub fn value_len(&self) -> usize {
        match &self.data {
            SetData::Value(fields) => concat_len(fields),
            SetData::None | SetData::Verdict => 0,
        }
    }

    /// Whether `other` is equal but for comment and size, so that it holds the same kind of
    /// elements.
    pub fn same_shape(&self, other: &Self) -> bool {
        self.same_fields(other) && self.timeout == other.timeout
    }

    /// Whether `other` is equal but for comment, size and timeout.
    pub fn same_fields(&self, other: &Self) -> bool {
        let types =
            |fields: &[Field]| fields.iter().map(|field| field.of_type()).collect::<Vec<_>>();
        let same_data = match (&self.data, &other.data) {
            (SetData::Value(ours), SetData::Value(theirs)) => types(ours) == types(theirs),
            (ours, theirs) => ours == theirs,
        };
        self.name == other.name
            && types(&self.key) == types(&other.key)
            && same_data
            && self.interval == other.interval
    }
}

/// The length of a value of these fields. A single field is not padded.
pub(crate) fn concat_len(fields: &[Field]) -> usize {
    match fields {
        [one] => one.width(),
        many => many.iter().map(|field| field.padded_width()).sum(),
    }
}
