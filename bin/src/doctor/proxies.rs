//! The proxies of this node: what runs, what has left rules, and whether they are in each other's
//! way.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use switchyard_core::{model::Code, proxier::Mode};
use switchyard_iptables::legacy_service_chains;
use switchyard_kernel::{ipset::IpSets, nftables::gates::Chains};

use super::{
    Known, ask, needs_privilege,
    report::{Finding, Level, NotMade, Outcome},
};
use crate::{backends, config::settings::Settings};

/// The programs that are proxies by themselves.
const PROGRAMS: [&str; 2] = ["kube-proxy", "switchyard"];
/// The device of ipvs mode.
const DEVICE: &str = "kube-ipvs0";
/// The initial PID namespace (`PROC_PID_INIT_INO`), whose processes are all of the host's.
const HOST_PROCESSES: &str = "pid:[4026531836]";

/// The proxies of this node, as far as they are known.
pub(super) struct Proxies {
    /// The mode of the proxy that answers at the configured address.
    pub(super) mode: Option<Mode>,
    /// Whether a process of this program runs.
    pub(super) is_ours: bool,
    /// Whether a proxy answers.
    answers: bool,
    processes: Vec<Process>,
    /// Whether all processes of the host can be seen.
    sees_host: bool,
    /// The traces of each mode, or why they cannot be read.
    traces: Result<BTreeSet<(Mode, String)>, NotMade>,
}

/// A process of a proxy, in this network namespace.
struct Process {
    id: u32,
    program: &'static str,
}

impl Proxies {
    pub(super) fn find(settings: &Settings, is_privileged: bool) -> Self {
        let mode =
            ask::get(settings.servers.metrics, "/proxyMode").ok().flatten().and_then(|answer| {
                let body = ask::body(&answer).trim().to_owned();
                backends::MODES.into_iter().find(|mode| mode.as_str() == body)
            });
        let healthz = settings.servers.healthz.and_then(|at| ask::get(at, "/healthz").ok()?);
        let answers = mode.is_some()
            || healthz.is_some_and(|answer| ask::body(&answer).contains("lastUpdated"));
        let (processes, is_seen) = processes();
        Self {
            mode,
            is_ours: processes.iter().any(|process| process.program == "switchyard"),
            answers,
            processes,
            sees_host: is_seen
                && fs::read_link("/proc/self/ns/pid")
                    .is_ok_and(|namespace| namespace == Path::new(HOST_PROCESSES)),
            traces: match is_privileged {
                true => traces(),
                false => Err(needs_privilege()),
            },
        }
    }

    /// Whether a proxy serves the node, or has left rules that do.
    pub(super) fn serves(&self) -> bool {
        let has_rules = self.traces.as_ref().is_ok_and(|traces| !traces.is_empty());
        self.answers || !self.processes.is_empty() || has_rules
    }
}

/// Returns the processes of proxies in this network namespace, but for this one and other commands,
/// and whether all of them could be seen: a user other than root may look at no program that has
/// capabilities.
fn processes() -> (Vec<Process>, bool) {
    let Ok(all) = fs::read_dir("/proc") else { return (Vec::new(), false) };
    let namespace = fs::read_link("/proc/self/ns/net").ok();
    let mut is_seen = true;
    let look = |id: u32| {
        let directory = PathBuf::from(format!("/proc/{id}"));
        let program = fs::read_link(directory.join("exe"));
        if program.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            let name = fs::read_to_string(directory.join("comm")).unwrap_or_default();
            is_seen &= !PROGRAMS.contains(&name.trim_end());
        }
        let program = program.ok()?.to_string_lossy().into_owned();
        // What the kernel appends once the file was replaced.
        let program = Path::new(program.strip_suffix(" (deleted)").unwrap_or(&program));
        let program = PROGRAMS.into_iter().find(|name| program.ends_with(name))?;
        let line = fs::read_to_string(directory.join("cmdline")).ok()?;
        let is_here = fs::read_link(directory.join("ns/net")).ok() == namespace;
        (is_here && serves_cluster(&line)).then_some(Process { id, program })
    };
    let ids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let found = ids.filter(|id| *id != std::process::id()).filter_map(look).collect();
    (found, is_seen)
}

/// Whether a process with this command line (`/proc/PID/cmdline`) serves the Services of the cluster:
/// a command such as `render` does not, nor a run that ends, nor a proxy with a name of its own.
fn serves_cluster(line: &str) -> bool {
    let mut words = line.split('\0').skip(1).peekable();
    let is_command = words.peek().is_some_and(|word| !word.is_empty() && !word.starts_with('-'));
    let is_other = |word: &str| {
        let word = word.replace('_', "-");
        word.starts_with("--service-proxy-name")
            || ["--cleanup", "--init-only", "--version"].contains(&&*word)
    };
    !is_command && !words.any(is_other)
}

/// Returns what shows that a mode is, or was, at work here.
fn traces() -> Result<BTreeSet<(Mode, String)>, NotMade> {
    let mut traces = BTreeSet::new();
    for name in Chains::list()?.names() {
        if name.table == "kube-proxy" {
            traces.insert((Mode::NFTABLES, format!("the table {} kube-proxy", name.family)));
        } else if name.table == "nat" && name.chain.starts_with("KUBE-SVC-") {
            traces.insert((Mode::IPTABLES, format!("chains KUBE-SVC-* of {}tables", name.family)));
        }
    }
    if legacy_service_chains()? {
        traces.insert((Mode::IPTABLES, "chains KUBE-SVC-* of iptables-legacy".to_owned()));
    }
    if fs::exists(format!("/proc/sys/net/ipv4/conf/{DEVICE}")).unwrap_or(false) {
        traces.insert((Mode::IPVS, format!("the device {DEVICE}")));
    }
    let sets = IpSets::open().and_then(|mut sets| sets.names())?;
    // Those of kube-router's network policies begin with KUBE-SRC- and KUBE-DST-.
    let is_policys = |name: &str| name.starts_with("KUBE-SRC-") || name.starts_with("KUBE-DST-");
    if sets.iter().any(|name| name.starts_with("KUBE-") && !is_policys(name)) {
        traces.insert((Mode::IPVS, "IP sets KUBE-*".to_owned()));
    }
    Ok(traces)
}

/// Whether what `left` leaves may belong to a proxy that serves in mode `serving`.
fn belongs(left: Mode, serving: Mode, is_ours: bool) -> bool {
    match serving {
        // Rules of another mode are beneath.
        Mode::IPVS => left != Mode::IPTABLES || is_ours,
        Mode::USERSPACE => left != Mode::IPVS,
        serving => left == serving,
    }
}

/// Returns the mode that serves, by the modes that have left something, and what is of others.
fn strangers(
    traces: &BTreeSet<(Mode, String)>,
    serving: Option<Mode>,
    is_ours: bool,
) -> (Option<Mode>, Vec<&(Mode, String)>) {
    let has_left = |mode: Mode| traces.iter().any(|(left, _)| *left == mode);
    let likely =
        [Mode::IPVS, Mode::NFTABLES, Mode::IPTABLES].into_iter().find(|mode| has_left(*mode));
    // A mode that is only configured has left nothing yet.
    let serving = serving.filter(|mode| *mode == Mode::USERSPACE || has_left(*mode)).or(likely);
    let is_strange =
        |left: &&(Mode, String)| serving.is_some_and(|mode| !belongs(left.0, mode, is_ours));
    (serving, traces.iter().filter(is_strange).collect())
}

/// Finds rules of more than one mode.
pub(super) fn one_mode(known: &Known) -> Outcome {
    let proxies = &known.proxies;
    let traces = proxies.traces.as_ref().map_err(NotMade::clone)?;
    let (serving, strange) = strangers(traces, known.mode(), proxies.is_ours);
    let (Some(serving), false) = (serving, strange.is_empty()) else { return Ok(Vec::new()) };
    let others: BTreeSet<&str> = strange.iter().map(|(mode, _)| mode.as_str()).collect();
    let others = others.into_iter().collect::<Vec<_>>().join(" and ");
    let what: Vec<&str> = strange.iter().map(|(_, what)| what.as_str()).collect();
    Ok(vec![Finding {
        code: Code::new("SWY0302"),
        level: Level::Error,
        finding: format!("Rules of {others} mode are beside those of {serving} mode, and lead to endpoints that may be gone"),
        because: format!("there are {}", what.join(", ")),
        remedy: "end the other proxy, if one runs (SWY0304); switchyard removes what others left when it starts, \
                 switchyard --cleanup removes all"
            .to_owned(),
    }])
}

/// Finds several proxies.
pub(super) fn one_proxy(known: &Known) -> Outcome {
    let processes = &known.proxies.processes;
    if processes.len() < 2 {
        return match known.proxies.sees_host {
            true => Ok(Vec::new()),
            false => Err(NotMade(
                "needs the host's processes (hostPID), and the right to look at them (root)"
                    .to_owned(),
            )),
        };
    }
    let each: Vec<String> =
        processes.iter().map(|process| format!("{} ({})", process.program, process.id)).collect();
    Ok(vec![Finding {
        code: Code::new("SWY0304"),
        level: Level::Error,
        finding: format!(
            "{} proxies serve this node, and undo each other's rules",
            processes.len()
        ),
        because: format!("these processes are in this network namespace: {}", each.join(", ")),
        remedy:
            "keep one: a DaemonSet's nodeSelector, or a static pod's manifest, names the others"
                .to_owned(),
    }])
}

/// Finds rules that no proxy keeps.
pub(super) fn kept(known: &Known) -> Outcome {
    let proxies = &known.proxies;
    let traces = proxies.traces.as_ref().map_err(NotMade::clone)?;
    if traces.is_empty() || proxies.answers || !proxies.processes.is_empty() {
        return Ok(Vec::new());
    }
    if !proxies.sees_host {
        let reason = "needs the host's processes (hostPID), as no proxy answers";
        return Err(NotMade(reason.to_owned()));
    }
    let what: Vec<&str> = traces.iter().map(|(_, what)| what.as_str()).collect();
    Ok(vec![Finding {
        code: Code::new("SWY0303"),
        level: Level::Error,
        finding: "Services are served as they were when the proxy ended; changes have no effect"
            .to_owned(),
        because: format!(
            "there are {}, no process of a proxy, and no answer at its addresses",
            what.join(", ")
        ),
        remedy: "start the proxy, or remove its rules with switchyard --cleanup".to_owned(),
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_named_proxies_do_not_serve_the_cluster() {
        for (line, expected) in [
            ("/usr/bin/kube-proxy\0--config=/x\0", true),
            ("switchyard\0", true),
            ("switchyard\0doctor\0-o\0json\0", false),
            ("switchyard\0--v=2\0--service-proxy-name=pilot\0", false),
        ] {
            assert_eq!(serves_cluster(line), expected, "{line:?}");
        }
    }

    #[test]
    fn rules_beneath_another_mode_are_no_strangers() {
        let found = |left: &[Mode], serving, is_ours| {
            let traces = left.iter().map(|mode| (*mode, mode.to_string())).collect();
            let (serving, strange) = strangers(&traces, serving, is_ours);
            (serving, strange.into_iter().map(|(mode, _)| *mode).collect::<Vec<_>>())
        };
        let (nft, ipt, ipvs) = (Mode::NFTABLES, Mode::IPTABLES, Mode::IPVS);
        assert_eq!(found(&[], None, false), (None, vec![]));
        assert_eq!(found(&[nft], None, false), (Some(nft), vec![]));
        assert_eq!(found(&[nft, ipt], None, false), (Some(nft), vec![ipt]));
        assert_eq!(found(&[nft, ipt], Some(ipt), false), (Some(ipt), vec![nft]));
        assert_eq!(found(&[nft, ipvs], Some(nft), true), (Some(nft), vec![ipvs]));
        assert_eq!(found(&[nft, ipvs], None, false), (Some(ipvs), vec![]), "beneath");
        assert_eq!(found(&[ipt, ipvs], Some(ipvs), true), (Some(ipvs), vec![]), "beneath");
        assert_eq!(found(&[ipt, ipvs], Some(ipvs), false), (Some(ipvs), vec![ipt]));
        assert_eq!(
            found(&[nft, ipt], Some(Mode::USERSPACE), true),
            (Some(Mode::USERSPACE), vec![])
        );
    }
}
