//! The flags, as one table: [`table::FLAGS`].
//!
//! The table has the name, the kind of value, the default and the effect of each flag. Parsing and
//! help ([`parse`]), the configuration ([`Flags::values`]) and the reference in `docs/flags.md`
//! (`reference`) are made from the table.

mod flag;
pub mod parse;
#[cfg(test)]
mod reference;
pub mod table;
#[cfg(test)]
mod tests;
pub mod value;

use std::path::Path;

use figment::value::Value;

pub use self::flag::{Flag, Kind, Sets, Status};

/// The name that the program was called by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalledAs {
    /// `kube-proxy`, by tooling that does not know about Switchyard.
    KubeProxy,
    /// Any other name.
    Switchyard,
}

impl CalledAs {
    /// Returns the name by the first argument, which is the program's path.
    pub(crate) fn from_program(program: Option<&String>) -> Self {
        let name = program.and_then(|path| Path::new(path).file_name());
        if name.is_some_and(|name| name == "kube-proxy") {
            Self::KubeProxy
        } else {
            Self::Switchyard
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::KubeProxy => "kube-proxy",
            Self::Switchyard => "switchyard",
        }
    }

    /// The precedence if a flag and the file set the same field.
    pub fn precedence(self) -> Precedence {
        match self {
            Self::KubeProxy => Precedence::File,
            Self::Switchyard => Precedence::Flags,
        }
    }
}

/// The precedence if a flag and the file set the same field. See `docs/flags.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precedence {
    /// The flag's.
    #[default]
    Flags,
    /// The file's, as with kube-proxy: beside a file, most flags have no effect.
    File,
}

/// The flags with whose empty values kube-proxy does not start.
const NEVER_EMPTY: [&str; 2] = ["cluster-cidr", "logging-format"];

/// A flag that was given.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    pub name: &'static str,
    /// The value, in the type of the flag's [`Kind`].
    pub value: Value,
    /// The value as it was written.
    pub text: String,
}

/// The flags that were given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flags {
    /// The flags, each once, in the order of the table.
    pub given: Vec<Given>,
    /// The precedence if a flag and the file set the same field.
    pub precedence: Precedence,
}

/// A field of KubeProxyConfiguration, and the value that a flag gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct FlagValue {
    pub path: String,
    pub value: Value,
}

impl Flags {
    fn given(&self, name: &str) -> Option<&Given> {
        debug_assert!(table::named(name).is_some(), "{name} is in the table");
        self.given.iter().find(|given| given.name == name)
    }

    /// The value of a text flag that was given and is not empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.given(name)?.value.as_str().filter(|text| !text.is_empty())
    }

    /// Returns these flags, but for those that `others` have, which are added.
    pub fn overridden_by(mut self, others: &Self) -> Self {
        self.given.retain(|given| others.given(given.name).is_none());
        self.given.extend(others.given.iter().cloned());
        let place = |given: &Given| table::FLAGS.iter().position(|flag| flag.name == given.name);
        self.given.sort_by_key(place);
        self
    }

    /// Whether a switch was given and is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.given(name).and_then(|given| given.value.to_bool()).unwrap_or(false)
    }

    /// The value of a number flag that was given.
    pub fn number(&self, name: &str) -> Option<i128> {
        self.given(name)?.value.to_i128()
    }

    /// The value of a flag that was given, as it was written.
    pub fn written(&self, name: &str) -> Option<&str> {
        Some(&self.given(name)?.text)
    }

    /// The flags that have an effect, and the names of the flags that have none because of the
    /// file.
    fn counting(&self) -> (Vec<(&'static Flag, &Given)>, Vec<&'static str>) {
        let with_file = self.precedence == Precedence::File && self.text("config").is_some();
        let mut ignored = Vec::new();
        let mut counting = Vec::new();
        for given in &self.given {
            let Some(flag) = table::named(given.name) else { continue };
            let idle = flag.sets == Sets::Program || matches!(flag.status, Status::Gone(_));
            if with_file && !flag.beside_file && !idle {
                ignored.push(flag.name);
            } else {
                counting.push((flag, given));
            }
        }
        (counting, ignored)
    }

    /// The fields of KubeProxyConfiguration that the flags set, with their values. A flag whose
    /// text is empty counts as not given. `file_mode` is the mode in the file: some flags set a
    /// field in the section of the mode.
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

    /// The value of the deprecated flag for the port of the address in `field`, if the flag was
    /// given and has an effect.
    pub fn port_of(&self, field: &str) -> Option<i128> {
        let (counting, _) = self.counting();
        let (_, given) = counting
            .into_iter()
            .find(|(flag, _)| matches!(flag.sets, Sets::PortOf(path) if path == field))?;
        given.value.to_i128()
    }

    /// Whether a flag that was given and has an effect sets a field below `section`.
    pub fn any_below(&self, section: &str) -> bool {
        self.values("")
            .iter()
            .any(|flag| flag.path.strip_prefix(section).is_some_and(|rest| rest.starts_with('.')))
    }

    /// The notices about deprecated flags that were given, in pflag's words, to be printed before
    /// there is a log. A flag without an effect has its notice, too.
    pub fn notices(&self) -> impl Iterator<Item = String> {
        self.given.iter().filter_map(|given| match table::named(given.name)?.status {
            Status::Deprecated(advice) => {
                Some(format!("Flag --{} has been deprecated, {advice}", given.name))
            }
            _ => None,
        })
    }

    /// The warnings about the flags that were given.
    pub fn warnings(&self) -> Vec<String> {
        let (counting, ignored) = self.counting();
        let mut warnings: Vec<String> = counting
            .iter()
            .filter_map(|(flag, given)| match flag.status {
                Status::Gone(what) => {
                    Some(format!("--{} is a flag of old releases: {what}", flag.name))
                }
                _ if given.text.is_empty() && NEVER_EMPTY.contains(&flag.name) => {
                    Some(format!("--{} is empty, with which kube-proxy may not start", flag.name))
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
