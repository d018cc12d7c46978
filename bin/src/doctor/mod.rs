//! The command `switchyard doctor`: what on this node keeps Services from working. Reads, and
//! changes nothing; works on nodes with kube-proxy, and on nodes without any proxy.

mod ask;
mod bridges;
mod cluster;
mod configuration;
mod conntrack;
mod gates;
mod modes;
mod ports;
mod proxies;
mod report;
mod services;
mod sysctls;

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, OnceLock, mpsc},
    thread,
    time::Duration,
};

use serde::Deserialize;
use switchyard_core::{error::ErrorChain, explain::Picture, proxier::Mode};

use self::{
    cluster::{Cluster, Unanswered},
    proxies::Proxies,
    report::{NotMade, Outcome, Report},
};
use crate::{
    Failure, backends,
    config::{self, Loaded, cli::OutputFormat, flags::Flags},
    explain::{
        self,
        client::{self, ClientError},
        server::Request,
    },
    printable::{ended, print_json},
    process,
    verify::FAILED,
};

/// The longest time of a check, beyond which the report does without it.
const LONGEST: Duration = Duration::from_secs(20);

/// The facts that all checks share.
struct Known {
    loaded: Loaded,
    /// Whether flags name the configuration, or the running proxy has it.
    is_configured: bool,
    /// The origin of the node's name, in words.
    name_from: &'static str,
    /// The proxy that runs on this node, and what proxies have left.
    proxies: Proxies,
    /// Whether this process has CAP_NET_ADMIN, without which the kernel shows no tables.
    is_privileged: bool,
    /// The local socket of this program's proxy, if one runs.
    socket: PathBuf,
    cluster: OnceLock<Result<Cluster, Unanswered>>,
    picture: OnceLock<Result<Seen, NotMade>>,
}

/// The Services that are looked at.
struct Seen {
    picture: Picture,
    /// Whether the API server has more.
    is_cut: bool,
}

/// The status of the running proxy, as far as it is looked at.
#[derive(Deserialize)]
struct Status {
    problems: Vec<String>,
}

impl Known {
    /// The answers of the API server.
    fn cluster(&self) -> &Result<Cluster, Unanswered> {
        let settings = &self.loaded.settings;
        self.cluster.get_or_init(|| Cluster::ask(&settings.source, &settings.node.node_name))
    }

    /// The Services, or why they are not known.
    fn seen(&self) -> Result<&Seen, NotMade> {
        self.picture.get_or_init(|| services::see(self)).as_ref().map_err(NotMade::clone)
    }

    /// Returns an error unless the kernel shows its tables to this process.
    fn privileged(&self) -> Result<(), NotMade> {
        if self.is_privileged { Ok(()) } else { Err(needs_privilege()) }
    }

    /// The problems of the running proxy.
    fn problems(&self) -> Result<Vec<String>, ClientError> {
        Ok(client::value::<Status>(&self.socket, &Request::Status)?.problems)
    }

    /// The mode that serves this node, or that the configuration names.
    fn mode(&self) -> Option<Mode> {
        self.proxies.mode.or_else(|| self.loaded.named_mode())
    }

    /// Returns the mode that the node is in, by default that of a new installation.
    fn likely_mode(&self) -> Mode {
        self.mode().unwrap_or(Mode::NFTABLES)
    }
}

/// A check, by its name in the report.
type Check = (&'static str, fn(&Known) -> Outcome);

const CHECKS: &[Check] = &[
    ("bridges", bridges::bypass),
    ("conntrack table", conntrack::full),
    ("conntrack losses", conntrack::losses),
    ("conntrack settings", conntrack::settings),
    ("tables of others", gates::closed),
    ("one mode", proxies::one_mode),
    ("one proxy", proxies::one_proxy),
    ("rules are kept", proxies::kept),
    ("forwarding", sysctls::forwarding),
    ("rp_filter", sysctls::reverse_path),
    ("route_localnet", sysctls::localhost),
    ("local ports", sysctls::local_ports),
    ("ports", ports::held),
    ("kernel", modes::usable),
    ("API server", cluster::answers),
    ("clock", cluster::clock),
    ("running proxy", cluster::running),
    ("rules as meant", services::as_meant),
    ("node ports", services::node_ports),
    ("probe", services::probe),
];

/// Makes all checks, prints the report, and returns the exit status.
pub fn run(flags: &Flags, format: OutputFormat) -> ExitCode {
    let status =
        check(flags).and_then(|report| print(&report, format).map(|()| report.exit_code()));
    ended("switchyard doctor", status, FAILED)
}

/// The flags that name a configuration, or a source of objects.
const OF_CONFIGURATION: [&str; 5] =
    ["config", "kubeconfig", "master", "manifests", "objects-socket"];

fn check(own: &Flags) -> Result<Report, Failure> {
    let names_some = OF_CONFIGURATION.iter().any(|name| own.text(name).is_some());
    let of_proxy = if names_some { Ok(None) } else { configuration::of_proxy(own) };
    let (found, not_taken) = of_proxy.map_or_else(|why| (None, Some(why)), |found| (found, None));
    let is_configured = names_some || found.is_some();
    let (flags, loaded) = match found {
        Some(found) => found,
        None => (own.clone(), config::load(own, &backends::MODES)?),
    };
    process::pass_on_privilege();
    let is_privileged = process::may_administer_networks();
    let proxies = Proxies::find(&loaded.settings, is_privileged);
    let mut report = Report::new(&loaded.settings.node.node_name);
    if let Some(why) = not_taken {
        report.add("configuration of the running proxy", Err(why));
    }
    let known = Arc::new(Known {
        name_from: name_from(&flags, &loaded),
        loaded,
        is_configured,
        proxies,
        is_privileged,
        socket: explain::socket(own),
        cluster: OnceLock::new(),
        picture: OnceLock::new(),
    });
    for (name, check) in CHECKS {
        report.add(name, within(LONGEST, &known, *check));
    }
    Ok(report)
}

/// Returns the origin of the node's name.
fn name_from(flags: &Flags, loaded: &Loaded) -> &'static str {
    if flags.text("hostname-override").is_some() {
        "that of --hostname-override"
    } else if loaded.config.hostname_override.is_empty() {
        "the host's"
    } else {
        "that of hostnameOverride in the configuration file"
    }
}

/// Makes a check on a thread, which goes on if the check takes longer.
fn within(longest: Duration, known: &Arc<Known>, check: fn(&Known) -> Outcome) -> Outcome {
    let (sender, receiver) = mpsc::channel();
    let known = Arc::clone(known);
    // No one listens any more after the time.
    thread::spawn(move || drop(sender.send(check(&known))));
    receiver.recv_timeout(longest).unwrap_or_else(|error| {
        Err(NotMade(match error {
            mpsc::RecvTimeoutError::Timeout => {
                format!("it took longer than {} s", longest.as_secs())
            }
            mpsc::RecvTimeoutError::Disconnected => "the check panicked".to_owned(),
        }))
    })
}

fn print(report: &Report, format: OutputFormat) -> Result<(), Failure> {
    match format {
        OutputFormat::Text => write!(io::stdout().lock(), "{report}")?,
        OutputFormat::Json => print_json(&serde_json::to_string_pretty(report)?)?,
    }
    Ok(())
}

/// The reason why a check of the kernel's tables is not made.
fn needs_privilege() -> NotMade {
    NotMade("needs CAP_NET_ADMIN".to_owned())
}

/// The reason why what only the running proxy knows is not known, in words.
fn unanswered(error: &(dyn std::error::Error + 'static)) -> String {
    match error.downcast_ref() {
        // Genuine kube-proxy has no such socket.
        Some(ClientError::Connect(path, error)) if error.kind() == io::ErrorKind::NotFound => {
            format!("no proxy of this program has the socket {}", path.display())
        }
        Some(ClientError::Connect(path, error)) => {
            format!("no proxy of this program answers at {}: {error}", path.display())
        }
        // Of one that is busy, the words of its answer.
        _ => ErrorChain(error).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_node_has_an_origin() {
        for (argument, in_file, expected) in [
            ("--hostname-override=a", "b", "--hostname-override"),
            ("--hostname-override=", "b", "hostnameOverride in"),
            ("--v=0", "", "the host's"),
        ] {
            let flags = config::testing::flags("switchyard", &[argument]);
            let mut loaded = config::load(&flags, &backends::MODES).unwrap();
            loaded.config.hostname_override = in_file.to_owned();
            assert!(name_from(&flags, &loaded).contains(expected), "{argument}");
        }
    }
}
