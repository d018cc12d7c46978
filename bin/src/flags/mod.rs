//! The flags, as one table: [`table::FLAGS`].
//!
//! The table says of each flag what it is called, what it takes, what it is without it, and what it
//! changes. Everything else follows from it: parsing and help ([`parse`]), the configuration
//! ([`Flags::values`]) and the reference in `docs/flags.md` ([`reference`]).

pub mod parse;
pub mod reference;
pub mod table;
pub mod value;

use figment::value::Value;

use self::table::FLAGS;

/// One flag.
#[derive(Debug)]
pub struct Flag {
    /// What it is called, without the hyphens.
    pub name: &'static str,
    /// Its letter.
    pub short: Option<char>,
    /// What it takes.
    pub kind: Kind,
    /// What it is if it is not given, as text.
    pub default: &'static str,
    /// What it changes.
    pub sets: Sets,
    /// What it is for.
    pub help: &'static str,
    /// Where it comes from, and whether to use it.
    pub status: Status,
    /// Whether it counts beside `--config` when the program is called `kube-proxy`.
    pub beside_file: bool,
}

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`; `true` if it stands alone.
    Switch,
    /// Any text.
    Text,
    /// A signed number of 32 bits.
    Int32,
    /// A number from 0.
    Uint32,
    /// A number with a fraction.
    Float32,
    /// A duration as Go writes it.
    Duration,
    /// Texts separated by commas; more than one such flag makes one list.
    List,
    /// `name=true` or `name=false`, separated by commas.
    Gates,
    /// `pattern=level`, separated by commas.
    Levels,
    /// An IP address.
    Ip,
    /// An IP address, with or without a port.
    Listen,
    /// A number of bytes, such as `64Ki`.
    Quantity,
    /// One of these.
    Word(&'static [&'static str]),
    /// Like [`Kind::Switch`], or `raw`, or a version.
    Version,
}

impl Kind {
    /// Whether it may stand without a value.
    pub fn stands_alone(self) -> bool {
        matches!(self, Self::Switch | Self::Version)
    }
}

/// What a flag changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sets {
    /// The field of KubeProxyConfiguration with this path.
    Field(&'static str),
    /// This field of `nftables` in that mode, of `iptables` in any other.
    Section(&'static str),
    /// The same, but nothing in ipvs mode.
    SectionUnlessIpvs(&'static str),
    /// This field of `ipvs` in that mode, nothing in any other.
    IpvsOnly(&'static str),
    /// The port of the address in this field; 0 makes the address empty.
    PortOf(&'static str),
    /// Nothing in KubeProxyConfiguration: what the program does.
    Program,
    /// Nothing at all.
    Nothing,
}

/// Where a flag comes from, and whether to use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// kube-proxy's.
    Usual,
    /// Ours.
    Ours,
    /// kube-proxy's, but not shown.
    Hidden,
    /// kube-proxy's, not shown, with this advice.
    Deprecated(&'static str),
    /// Of an old kube-proxy: it is taken, and this is said.
    Gone(&'static str),
}

impl Flag {
    const fn new(
        name: &'static str,
        kind: Kind,
        default: &'static str,
        sets: Sets,
        help: &'static str,
    ) -> Self {
        let (short, status) = (None, Status::Usual);
        Self { name, short, kind, default, sets, help, status, beside_file: false }
    }

    const fn short(mut self, letter: char) -> Self {
        self.short = Some(letter);
        self
    }

    const fn status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }

    const fn beside_file(mut self) -> Self {
        self.beside_file = true;
        self
    }

    /// Whether help has it.
    pub fn is_shown(&self) -> bool {
        matches!(self.status, Status::Usual | Status::Ours)
    }

    /// The flag of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        FLAGS.iter().find(|flag| flag.name == name)
    }
}

/// Whose rule of precedence counts. See `docs/flags.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precedence {
    /// A flag that is given counts more than the file.
    #[default]
    Flags,
    /// kube-proxy's: beside a file most flags count for nothing.
    File,
}

/// A flag that was given.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// Its name.
    pub name: &'static str,
    /// Its value, in the type of its [`Kind`].
    pub value: Value,
    /// Its value as it was written.
    pub text: String,
}

/// The flags that were given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flags {
    /// Each once.
    pub given: Vec<Given>,
    /// What counts more.
    pub precedence: Precedence,
}

/// A field of KubeProxyConfiguration, and what a flag says about it.
#[derive(Clone, Debug, PartialEq)]
pub struct FlagValue {
    /// The path of the field.
    pub path: String,
    /// The value.
    pub value: Value,
}

impl Flags {
    fn given(&self, name: &str) -> Option<&Given> {
        debug_assert!(Flag::named(name).is_some(), "{name} is in the table");
        self.given.iter().find(|given| given.name == name)
    }

    /// The value of a text; nothing if it is empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.given(name)?.value.as_str().filter(|text| !text.is_empty())
    }

    /// Whether a switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.given(name).and_then(|given| given.value.to_bool()).unwrap_or(false)
    }

    /// The value of a number that was given.
    pub fn number(&self, name: &str) -> Option<i128> {
        self.given(name)?.value.to_i128()
    }

    /// The value of a duration that was given, or any other, as it was written.
    pub fn written(&self, name: &str) -> Option<&str> {
        Some(&self.given(name)?.text)
    }

    /// The flags that count, and the names of those that do not because of the file.
    fn counting(&self) -> (Vec<(&'static Flag, &Given)>, Vec<&'static str>) {
        let with_file = self.precedence == Precedence::File && self.text("config").is_some();
        let mut ignored = Vec::new();
        let mut counting = Vec::new();
        for given in &self.given {
            let Some(flag) = Flag::named(given.name) else { continue };
            let idle = flag.sets == Sets::Program || matches!(flag.status, Status::Gone(_));
            if with_file && !flag.beside_file && !idle {
                ignored.push(flag.name);
            } else {
                counting.push((flag, given));
            }
        }
        (counting, ignored)
    }

    /// Every flag that was given, counts, and has a field in KubeProxyConfiguration, with that
    /// field. An empty text is as good as no flag, as it is for kube-proxy. Some flags belong to the
    /// section of the mode, which may be the file's.
    pub fn values(&self, file_mode: &str) -> Vec<FlagValue> {
        let (counting, _) = self.counting();
        let by_flag = counting.iter().find(|(flag, _)| flag.name == "proxy-mode");
        let mode = by_flag.and_then(|(_, given)| given.value.as_str()).filter(|m| !m.is_empty());
        let mode = mode.unwrap_or(file_mode);
        // Without a mode the iptables section counts; see `Settings`.
        let section = if mode == "nftables" { "nftables" } else { "iptables" };
        let path = |sets: Sets| match sets {
            Sets::Field(path) => Some(path.to_owned()),
            Sets::Section(field) => Some(format!("{section}.{field}")),
            Sets::SectionUnlessIpvs(field) if mode != "ipvs" => Some(format!("{section}.{field}")),
            Sets::IpvsOnly(field) if mode == "ipvs" => Some(format!("ipvs.{field}")),
            _ => None,
        };
        let is_empty = |value: &Value| value.as_str() == Some("");
        counting
            .into_iter()
            .filter(|(_, given)| !is_empty(&given.value))
            .filter_map(|(flag, given)| {
                Some(FlagValue { path: path(flag.sets)?, value: given.value.clone() })
            })
            .collect()
    }

    /// The deprecated flags for the port of the address in `field`, if one was given and counts.
    pub fn port_of(&self, field: &str) -> Option<i128> {
        let (counting, _) = self.counting();
        let (_, given) = counting
            .into_iter()
            .find(|(flag, _)| matches!(flag.sets, Sets::PortOf(path) if path == field))?;
        given.value.to_i128()
    }

    /// Whether a flag that was given and counts sets something below `section`.
    pub fn any_below(&self, section: &str) -> bool {
        self.values("")
            .iter()
            .any(|flag| flag.path.strip_prefix(section).is_some_and(|rest| rest.starts_with('.')))
    }

    /// What pflag says about the flags that were given, before there is a log. A flag that counts
    /// for nothing is spoken of, too.
    pub fn notices(&self) -> impl Iterator<Item = String> {
        self.given.iter().filter_map(|given| match Flag::named(given.name)?.status {
            Status::Deprecated(advice) => {
                Some(format!("Flag --{} has been deprecated, {advice}", given.name))
            }
            _ => None,
        })
    }

    /// What should be said about the flags that were given.
    pub fn warnings(&self) -> Vec<String> {
        let (counting, ignored) = self.counting();
        let mut warnings: Vec<String> = counting
            .iter()
            .filter_map(|(flag, _)| match flag.status {
                Status::Gone(what) => {
                    Some(format!("--{} is a flag of old releases: {what}", flag.name))
                }
                _ => None,
            })
            .collect();
        if !ignored.is_empty() {
            let names: Vec<String> = ignored.iter().map(|name| format!("--{name}")).collect();
            warnings.push(format!(
                "ignored beside --config, as kube-proxy ignores them: {}",
                names.join(", ")
            ));
        }
        warnings
    }
}
