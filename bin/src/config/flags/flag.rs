//! A row of the table of flags.

/// A flag, as the table describes it.
#[derive(Debug)]
pub struct Flag {
    /// The name, without the hyphens.
    pub name: &'static str,
    /// The one-letter form.
    pub short: Option<char>,
    pub kind: Kind,
    /// The value of a flag that is not given, as text.
    pub default: &'static str,
    /// The target of the flag.
    pub sets: Sets,
    pub help: &'static str,
    /// The origin of the flag, and whether help lists it.
    pub status: Status,
    /// Whether the flag has an effect beside `--config` when the program is called `kube-proxy`.
    pub beside_file: bool,
}

/// The kind of value that a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`. A flag without a value is `true`.
    Switch,
    /// Any text.
    Text,
    /// A signed 32-bit number.
    Int32,
    /// An unsigned 32-bit number.
    Uint32,
    /// A 32-bit floating-point number.
    Float32,
    /// A duration in Go's format, such as `1m30s`.
    Duration,
    /// A duration that is not negative.
    Limit,
    /// Texts separated by commas. A flag that is given again extends the list.
    List,
    /// `name=true` or `name=false`, separated by commas.
    Gates,
    /// `pattern=level`, separated by commas.
    Levels,
    Ip,
    /// An IP address, with or without a port.
    Listen,
    /// A number of bytes, such as `64Ki`.
    Quantity,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A [`Kind::Switch`], or `raw`, or a version.
    Version,
}

impl Kind {
    /// Whether a flag of this kind may be given without a value.
    pub fn stands_alone(self) -> bool {
        matches!(self, Self::Switch | Self::Version)
    }
}

/// The target of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sets {
    /// The field of KubeProxyConfiguration with this path.
    Field(&'static str),
    /// This field of the section `nftables` in nftables mode, of `iptables` in any other mode.
    Section(&'static str),
    /// Like [`Sets::Section`], but nothing in ipvs mode.
    SectionUnlessIpvs(&'static str),
    /// This field of the section `ipvs` in ipvs mode, nothing in any other mode.
    IpvsOnly(&'static str),
    /// The port of the address in the field with this path. 0 makes the address empty.
    PortOf(&'static str),
    /// The program itself; no field of KubeProxyConfiguration.
    Program,
    /// Nothing: the flag has no effect.
    Nothing,
}

/// The origin of a flag, and whether help lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// A flag of kube-proxy.
    Usual,
    /// A flag that only Switchyard has.
    Ours,
    /// A flag of kube-proxy that is not listed. Using the flag prints this advice.
    Deprecated(&'static str),
    /// A flag of an old kube-proxy: accepted with this warning.
    Gone(&'static str),
}

impl Flag {
    pub(super) const fn new(
        name: &'static str,
        kind: Kind,
        default: &'static str,
        sets: Sets,
        help: &'static str,
    ) -> Self {
        let (short, status) = (None, Status::Usual);
        Self { name, short, kind, default, sets, help, status, beside_file: false }
    }

    pub(super) const fn short(mut self, letter: char) -> Self {
        self.short = Some(letter);
        self
    }

    pub(super) const fn status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }

    pub(super) const fn beside_file(mut self) -> Self {
        self.beside_file = true;
        self
    }

    /// Whether help lists the flag.
    pub fn is_shown(&self) -> bool {
        matches!(self.status, Status::Usual | Status::Ours)
    }
}
