//! The command `switchyard verify`: whether the kernel does with every packet to Services what the
//! objects ask for.

use std::{
    io,
    path::Path,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use switchyard_core::{explain::Picture, proxier::Mode};
use switchyard_kernel::{
    families,
    nftables::{Family, Table},
    route,
};

use crate::{
    Failure, backends,
    comparison::{objects::Objects, report::Report, service},
    config::{
        self, Loaded,
        cli::{FromArguments, OutputFormat},
        flags::Flags,
        settings::{Settings, SourceSettings},
    },
    explain::{self, client::services},
    printable::{ended, print_json, print_lines},
    process, tracked,
};

/// The exit status if the tables were not compared.
pub const FAILED: u8 = 3;
/// The comparisons with a running proxy after which a difference counts, if nothing has changed
/// between the last two; the same where comparisons take long; the pause between two, in which the
/// proxy may repair what another program has done; and the time after which no more are made.
const ATTEMPTS: usize = 3;
const SLOW_ATTEMPTS: usize = 2;
const PAUSE: Duration = Duration::from_millis(500);
const SETTLE_FOR: Duration = Duration::from_secs(5);
/// The time for which tables that change are read again.
const READ_FOR: Duration = Duration::from_secs(10);
/// The time for which each table is evaluated; what takes longer is not understood.
const EVALUATE_FOR: Duration = Duration::from_secs(600);

/// Compares, prints the report, and returns the exit status.
pub fn run(asked: &FromArguments, flags: &Flags) -> ExitCode {
    let status = verify(asked, flags).map(|report| u8::from(!report.is_equal()));
    ended("switchyard verify", status, FAILED)
}

fn verify(asked: &FromArguments, flags: &Flags) -> Result<Report, Failure> {
    let loaded = config::load(flags, &backends::MODES)?;
    let report = compare(asked, flags, &loaded)?;
    match asked.format {
        OutputFormat::Text => print_lines(&report.to_string())?,
        OutputFormat::Json => print_json(&serde_json::to_string_pretty(&report)?)?,
    }
    Ok(report)
}

fn compare(asked: &FromArguments, flags: &Flags, loaded: &Loaded) -> Result<Report, Failure> {
    let settings = &loaded.settings;
    let limits = (READ_FOR, EVALUATE_FOR);
    let picture = match (&asked.from, &settings.source) {
        (Some(path), _) => explain::read_snapshot(path)?,
        (None, SourceSettings::Manifests(directory)) => {
            // No proxy is asked for its mode.
            loaded.named_mode().map_or(Ok(()), |mode| check_mode(mode.as_str()))?;
            let problems = &mut io::stderr().lock();
            let profile = &switchyard_nft::PROFILE;
            tracked::picture(tracked::tracked(settings, directory, profile, problems)?)?
        }
        (None, _) => return compare_running(&explain::socket(flags), settings, limits),
    };
    compare_with(settings, &picture, limits)
}

/// Compares the tables with the Services of the running proxy, as [`compare_with`] does, until
/// nothing differs, or a difference counts, or the proxy has not settled for a while
/// ([`Report::is_unsettled`]).
pub fn compare_running(
    socket: &Path,
    settings: &Settings,
    limits: (Duration, Duration),
) -> Result<Report, Failure> {
    let begun = Instant::now();
    let mut before = services(socket)?;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let mut report = compare_with(settings, &before.picture, limits)?;
        if report.is_equal() {
            return Ok(report);
        }
        thread::sleep(PAUSE);
        let now = services(socket)?;
        report.is_unsettled = !before.is_settled || now != before;
        if is_last(attempts, report.is_unsettled, begun.elapsed()) {
            return Ok(report);
        }
        before = now;
    }
}

/// Whether no comparison follows on these. Only what was seen twice can differ still.
fn is_last(attempts: usize, is_unsettled: bool, elapsed: Duration) -> bool {
    let is_late = attempts >= SLOW_ATTEMPTS && elapsed > SETTLE_FOR;
    is_late || attempts >= ATTEMPTS && !is_unsettled
}

/// Compares the tables with these Services, each for at most these times to read it and to evaluate
/// it.
fn compare_with(
    settings: &Settings,
    Picture { node, services }: &Picture,
    (read_for, evaluate_for): (Duration, Duration),
) -> Result<Report, Failure> {
    node.mode.as_deref().map_or(Ok(()), check_mode)?;
    if !process::may_administer_networks() {
        return Err("verifying needs CAP_NET_ADMIN: run this as root, or in the proxy's pod".into());
    }
    let nft = backends::nft_config(&settings.backend, families());
    let addresses = route::interface_addresses()?;
    let begun = Instant::now();
    let mut report = Report { services: services.len(), ..Report::default() };
    // Those that the kernel has not refused.
    let known = || services.iter().flat_map(|one| &one.ports).filter(|one| one.refused.is_none());
    let ports: Vec<_> = known().filter_map(|port| port.resolved.clone()).collect();
    for family in Family::ALL {
        if !*nft.families.get(family.into()) || node.refused.get(family.into()).is_some() {
            continue;
        }
        let table = Table::new(family, &*nft.table);
        let objects = Objects::new(family, &node.settings, &ports, &addresses);
        let objects = objects.drained(known().flat_map(service::drained));
        report.compare(&table, &objects, read_for, evaluate_for)?;
    }
    report.milliseconds = begun.elapsed().as_millis() as u64;
    Ok(report)
}

fn check_mode(mode: &str) -> Result<(), Failure> {
    if mode == Mode::NFTABLES.as_str() {
        return Ok(());
    }
    Err(format!("the proxy is in mode {mode}; nftables mode alone can be verified").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_comparison_proves_nothing() {
        let (soon, late) = (Duration::from_secs(1), Duration::from_secs(60));
        assert!(!is_last(1, false, late) && is_last(2, false, late) && is_last(2, true, late));
        assert!(!is_last(2, false, soon) && is_last(3, false, soon) && !is_last(9, true, soon));
    }
}
