//! The command `switchyard verify`: whether the kernel does with every packet to Services what the
//! objects ask for.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::{Duration, Instant},
};

use switchyard_core::{
    error::ErrorChain,
    explain::{Known, KnownNode, KnownService},
    proxier::Mode,
};
use switchyard_netlink::{kernel::families, route};
use switchyard_nft_ruleset::{Family, Table};

use crate::{
    Failure, backends,
    comparison::{objects::Objects, report::Report, service},
    config::{
        self, Loaded,
        cli::{FromArguments, OutputFormat},
        flags::Flags,
        settings::{Settings, SourceSettings},
    },
    explain,
    printable::{print_json, print_lines},
    tracked,
};

/// The exit status if the tables were not compared.
const FAILED: u8 = 3;
/// The comparisons with a running proxy that are made until one finds no difference: a sync may
/// come between its snapshot and the reading of the tables.
const ATTEMPTS: usize = 3;
/// The time for which tables that change are read again.
const READ_FOR: Duration = Duration::from_secs(10);
/// The time for which each table is evaluated; what takes longer is not understood.
const EVALUATE_FOR: Duration = Duration::from_secs(600);

/// Compares, prints the report, and returns the exit status.
pub fn run(asked: &FromArguments, flags: &Flags) -> ExitCode {
    match verify(asked, flags) {
        Ok(report) if report.is_equal() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            // A failure to write to standard error cannot be reported anywhere.
            let _ = writeln!(io::stderr(), "switchyard verify: {}", ErrorChain(error.as_ref()));
            ExitCode::from(FAILED)
        }
    }
}

fn verify(asked: &FromArguments, flags: &Flags) -> Result<Report, Failure> {
    let loaded = config::load(flags, &backends::MODES)?;
    let is_running = asked.from.is_none() && flags.text("manifests").is_none();
    let mut report = compare(asked, flags, &loaded)?;
    for _ in 1..if is_running { ATTEMPTS } else { 1 } {
        if report.is_equal() {
            break;
        }
        report = compare(asked, flags, &loaded)?;
    }
    match asked.format {
        OutputFormat::Text => print_lines(&report.to_string())?,
        OutputFormat::Json => print_json(&serde_json::to_string_pretty(&report)?)?,
    }
    Ok(report)
}

fn compare(asked: &FromArguments, flags: &Flags, loaded: &Loaded) -> Result<Report, Failure> {
    let settings = &loaded.settings;
    let (node, services): (_, Vec<KnownService>) = match &settings.source {
        SourceSettings::Manifests(directory) if asked.from.is_none() => {
            // No proxy is asked for its mode.
            loaded.named_mode().map_or(Ok(()), |mode| check_mode(mode.as_str()))?;
            let problems = &mut io::stderr().lock();
            let mut tracker =
                tracked::tracked(settings, directory, &switchyard_nft::PROFILE, problems)?;
            // As the running proxy, and unlike commands that answer on any machine.
            tracker.set_interface_addresses(route::interface_addresses()?);
            tracker.resolve();
            let names = Known::names(&tracker);
            let services = names.filter_map(|name| Known::service(&tracker, name)).collect();
            (Known::node(&tracker), services)
        }
        _ => {
            let picture = match &asked.from {
                Some(path) => explain::read_snapshot(path)?,
                None => {
                    let mut text = Vec::new();
                    explain::client::snapshot(&explain::socket(flags), &mut text)?;
                    explain::snapshot::read(&text[..])?
                }
            };
            (picture.node, picture.services)
        }
    };
    compare_with(settings, &node, &services, (READ_FOR, EVALUATE_FOR))
}

/// Compares the tables with these Services, each for at most these times to read it and to evaluate
/// it.
pub fn compare_with(
    settings: &Settings,
    node: &KnownNode,
    services: &[KnownService],
    (read_for, evaluate_for): (Duration, Duration),
) -> Result<Report, Failure> {
    node.mode.as_deref().map_or(Ok(()), check_mode)?;
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
