//! The proxy that cases are run with: one of Switchyard's backends, genuine kube-proxy, or any
//! other by a command line.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use crate::{
    backend,
    case::Case,
    error::{Result, RigError},
    kube_proxy,
    proxy::ProxyOptions,
};

/// Stands for the file of the API server that serves the case's objects.
const KUBECONFIG: &str = "{kubeconfig}";

/// Stands for the directory of the case's objects as manifests.
const MANIFESTS: &str = "{manifests}";

/// Stands for the flags of kube-proxy that the case asks for.
const FLAGS: &str = "{flags}";

/// The reason for which some cases are not asked of a proxy that takes no flags.
pub(crate) const WITHOUT_FLAGS: &str =
    "The case is one of flags, and the proxy was run without these.";

/// A proxy, and the name that its results have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// A backend, or the name of another proxy.
    pub name: String,
    /// The `--proxy-mode`; what the cases except of this mode is not asked of the proxy.
    pub mode: String,
    pub binary: PathBuf,
    /// The command line, if the proxy is not Switchyard.
    pub command: Option<CommandLine>,
}

impl Subject {
    /// A backend of Switchyard's program, or one of [`backend::REFERENCES`], whose program the
    /// environment names.
    ///
    /// # Errors
    ///
    /// If there is no such program.
    pub fn new(backend: &str, binary: &Path) -> Result<Self> {
        if backend::is_kube_proxy(backend) {
            let program = kube_proxy::find()?.ok_or_else(backend::no_kube_proxy)?;
            let words = vec!["--kubeconfig".to_owned(), KUBECONFIG.to_owned(), FLAGS.to_owned()];
            return Ok(CommandLine { program, words }.named(backend, backend::mode(backend)));
        }
        let (name, mode) = (backend.to_owned(), backend::mode(backend).to_owned());
        Ok(Self { name, mode, binary: binary.to_owned(), command: None })
    }

    /// The reason for which the proxy cannot satisfy the case, if any.
    pub fn not_for<'a>(&self, case: &'a Case) -> Option<&'a str> {
        let takes_flags = self.command.as_ref().is_none_or(CommandLine::takes_flags);
        let needs_flags = !case.args.is_empty() || case.config.is_some() || !case.cluster_cidr;
        match needs_flags && !takes_flags {
            true => Some(WITHOUT_FLAGS),
            false => case.not_for(&self.name).or_else(|| case.not_for(&self.mode)),
        }
    }
}

/// The command line of a proxy that is not Switchyard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    program: PathBuf,
    words: Vec<String>,
}

impl CommandLine {
    /// Reads words that are separated by blanks, the first of which is the program. The others may
    /// contain `{kubeconfig}`, the file of an API server with the objects of a case, or
    /// `{manifests}`, the directory of these; a word may be `{flags}`, the flags of kube-proxy that
    /// a case asks for.
    ///
    /// # Errors
    ///
    /// If the proxy would not see the objects.
    pub fn parse(line: &str) -> Result<Self> {
        let mut words = line.split_whitespace().map(str::to_owned);
        let program = words.next().unwrap_or_default().into();
        let command = Self { program, words: words.collect() };
        match command.asks_a_server() || command.has(MANIFESTS) {
            true => Ok(command),
            false => Err(RigError::Setup(format!(
                "the command {line:?} has neither {KUBECONFIG} nor {MANIFESTS}"
            ))),
        }
    }

    /// The proxy of this command, in this mode.
    pub fn named(self, name: &str, mode: &str) -> Subject {
        let (name, mode, binary) = (name.to_owned(), mode.to_owned(), self.program.clone());
        Subject { name, mode, binary, command: Some(self) }
    }

    /// Whether the proxy has the objects from an API server.
    pub(crate) fn asks_a_server(&self) -> bool {
        self.has(KUBECONFIG)
    }

    /// Whether the proxy takes the flags of kube-proxy, and has its metrics where these ask for
    /// them.
    pub(crate) fn takes_flags(&self) -> bool {
        self.words.iter().any(|word| word == FLAGS)
    }

    fn has(&self, part: &str) -> bool {
        self.words.iter().any(|word| word.contains(part))
    }

    /// The words after the program.
    pub(crate) fn arguments(&self, options: &ProxyOptions) -> Vec<String> {
        let objects = options.objects.path().to_string_lossy();
        let fill = |word: &String| match word.as_str() {
            FLAGS => options.flags(),
            _ => vec![word.replace(KUBECONFIG, &objects).replace(MANIFESTS, &objects)],
        };
        self.words.iter().flat_map(fill).collect()
    }
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Where the program is differs between machines.
        let program = self.program.file_name().unwrap_or_default();
        write!(f, "{} {}", program.to_string_lossy(), self.words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::Objects;

    #[test]
    fn a_command_line_is_filled_in_and_asked_for_no_more_than_it_can() {
        let mut options = ProxyOptions::new("other".into(), "nftables", "/m".into(), "/log".into());
        let command = CommandLine::parse("other --dir={manifests} --node node-1").unwrap();
        assert_eq!(command.arguments(&options), ["--dir=/m", "--node", "node-1"]);
        let other = command.named("other", "ipvs");
        let with = |args: &[&str], cluster_cidr| {
            let args = args.iter().map(|&one| one.to_owned()).collect();
            Case { args, cluster_cidr, ..Case::default() }
        };
        assert_eq!(other.not_for(&with(&[], true)), None);
        assert!(other.not_for(&with(&["--masquerade-all"], true)).is_some());
        assert!(other.not_for(&with(&[], false)).is_some());
        let mut excepted = with(&[], true);
        excepted.not.insert("ipvs".to_owned(), "Why.".to_owned());
        assert_eq!(other.not_for(&excepted), Some("Why."));

        options.objects = Objects::Server("/k".into());
        let command = CommandLine::parse("kube-proxy --kubeconfig {kubeconfig} {flags}").unwrap();
        let arguments = command.arguments(&options);
        assert_eq!(arguments[..3], ["--kubeconfig", "/k", "--hostname-override"]);
        assert!(arguments.ends_with(&options.flags()));
        assert_eq!(command.named("x", "nftables").not_for(&with(&["--v=1"], false)), None);

        let error = CommandLine::parse("kube-proxy {flags}").unwrap_err().to_string();
        assert!(error.contains("neither"), "{error}");
    }
}
