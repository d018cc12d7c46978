//! The command `switchyard trace`: the way of real packets through the tables of all programs, and
//! whether `switchyard explain` predicted it.
//!
//! ```text
//! kernel: a table of this process marks packets ──► events ──► packet ─┐
//! proxy, manifests or snapshot ──► explain ──► forecast ───────────────┴► report
//! ```
//!
//! The table is gone when the process ends, however it ends.

mod book;
mod forecast;
mod judge;
mod owner;
mod packet;
mod report;

use std::{
    io::{self, Write},
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};
use switchyard_core::{explain::Question, model::IpFamily};
use switchyard_kernel::{
    families,
    netlink::Error,
    nftables::trace::{TraceListener, TraceTable, TracedFlow},
    route::{self, RoutedBy},
};

use self::{
    book::Book,
    forecast::{Compared, Forecasts},
    judge::Judge,
    owner::OwnChains,
    packet::{Fate, Packet, Packets, TABLES},
    report::{Line, Report},
};
use crate::{
    Failure, backends,
    config::{
        self,
        cli::{OutputFormat, TraceArguments},
        flags::Flags,
    },
    printable::{ended, print_json, print_lines},
};

/// The packets a second that are traced, of those that come in and of those that the node sends.
const RATE: u32 = 20;
/// The longest wait for events, after which packets at their end are printed.
const TURN: Duration = Duration::from_millis(100);
/// The longest wait at the end, for the events of packets on their way, and for answers.
const LAST: Duration = Duration::from_secs(1);
/// The most datagrams of events that are read before packets are printed.
const MOST_AT_ONCE: usize = 4096;

/// Why nothing is traced.
#[derive(Debug, thiserror::Error)]
enum TraceError {
    #[error("trace is about a connection: CLIENT ADDRESS:PORT, such as 10.244.1.9 10.96.0.10:80")]
    Question,
    #[error("{0} and {1} are of different IP families")]
    Families(std::net::IpAddr, SocketAddr),
    #[error("tracing needs CAP_NET_ADMIN: run this as root, or in the proxy's pod")]
    Privilege(#[source] Error),
    #[error(
        "the kernel refuses a table that is removed with its process, which needs Linux 5.12 and \
         nf_tables with the expressions meta, limit and lookup"
    )]
    Table(#[source] Error),
}

/// Traces, prints what happened, and returns the exit status.
pub fn run(asked: &TraceArguments, flags: &Flags) -> ExitCode {
    ended("switchyard trace", trace(asked, flags), 1)
}

fn trace(asked: &TraceArguments, flags: &Flags) -> Result<u8, Failure> {
    let question: Question = asked.question.parse()?;
    let Question::Address { client, to, protocol } = question else {
        return Err(TraceError::Question.into());
    };
    if let Some(client) = client.filter(|client| client.is_ipv4() != to.is_ipv4()) {
        return Err(TraceError::Families(client, to).into());
    }
    let loaded = config::load(flags, &backends::MODES)?;
    let nft = backends::nft_config(&loaded.settings.backend, families());
    let forecasts = Forecasts::new(asked.from.as_ref(), flags, &loaded, to, protocol)?;
    let is_text = asked.format == OutputFormat::Text;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // A second one ends the process at once; the table goes with it.
        flag::register_conditional_default(signal, Arc::clone(&ended))?;
        flag::register(signal, Arc::clone(&ended))?;
    }

    let name = format!("{TABLES}{}", std::process::id());
    let mut listener = TraceListener::open().map_err(refused)?;
    let own = route::interface_addresses()?;
    let by_node = client.map(|client| client.is_loopback() || own.contains(&client));
    let flow = TracedFlow { client, by_node, to, protocol: protocol.number() };
    let table = TraceTable::add(&name, &flow, RATE, asked.time).map_err(refused)?;
    let mut book = Book::open()?;
    let mut report = Report {
        question: question.to_string(),
        legacy_tables: legacy_tables(to),
        ..Report::default()
    };
    if is_text {
        let family = if to.is_ipv4() { "ip" } else { "ip6" };
        writeln!(
            io::stdout(),
            "Tracing {question} for {} s, at most {RATE} packets a second, by the table {family} {name}, which \
             goes with this process.\n",
            asked.time.as_secs(),
        )?;
    }
    let own = OwnChains {
        mode: loaded.settings.backend.mode,
        table: nft.table.to_string(),
        may_hide: !report.legacy_tables.is_empty(),
    };
    let mut judge = Judge::start(forecasts, own);
    let begun = Instant::now();
    let mut packets = Packets::new(name, asked.packets);
    let mut ending = None;
    loop {
        receive(&mut listener, &mut packets, &mut book, &mut report.losses)?;
        if ending.is_none() && (ended.load(Ordering::Relaxed) || begun.elapsed() >= asked.time) {
            packets.stop();
            report.seconds = begun.elapsed().as_secs_f64();
            ending = Some(Instant::now());
        }
        // The last packets may still be on their way, as their answers may.
        let is_late = ending.is_some_and(|since| since.elapsed() >= LAST);
        judge.ask(packets.finished(is_late));
        for (packet, Compared { agreement, service, own }) in judge.take(is_late) {
            if let Some(service) = service {
                report.service = service;
            }
            let mut line = Line::new(&packet, agreement, |index| book.interface(index), &own);
            if let Fate::Sent(Some(output)) = packet.fate {
                let Packet { first, last, input, mark, .. } = &packet;
                let by = RoutedBy { source: first.source.ip(), input: *input, mark: *mark };
                line.next_hop = book.next_hop(last.destination.ip(), by, output);
            }
            let text = report.add(line);
            if is_text {
                print_lines(&(text + "\n"))?;
            }
        }
        if packets.is_over() && judge.is_done() {
            break;
        }
        wait(&listener, TURN)?;
    }
    drop(table);
    if ending.is_none() {
        report.seconds = begun.elapsed().as_secs_f64();
    }
    match is_text {
        true => print_lines(&report.summary())?,
        false => print_json(&serde_json::to_string_pretty(&report)?)?,
    }
    Ok(report.exit_status())
}

fn refused(error: Error) -> TraceError {
    use rustix::io::Errno;
    match error.errno().map(Errno::from_raw_os_error) {
        Some(Errno::PERM | Errno::ACCESS) => TraceError::Privilege(error),
        _ => TraceError::Table(error),
    }
}

/// Takes the events that are there.
fn receive(
    listener: &mut TraceListener,
    packets: &mut Packets,
    book: &mut Book,
    losses: &mut u32,
) -> Result<(), Error> {
    for _ in 0..MOST_AT_ONCE {
        match listener.receive() {
            Ok(Some(events)) => events.iter().for_each(|event| packets.add(event, book)),
            Ok(None) => {
                packets.caught_up();
                break;
            }
            Err(Error::Overrun) => {
                packets.lose();
                *losses = losses.saturating_add(1);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits for events, a signal, or the end of a time.
fn wait(listener: &TraceListener, longest: Duration) -> io::Result<()> {
    let mut sockets = [PollFd::new(listener, PollFlags::IN)];
    let longest = Timespec { tv_sec: 0, tv_nsec: longest.subsec_nanos().into() };
    match poll(&mut sockets, Some(&longest)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The tables of iptables-legacy that have rules, as far as this process may know.
fn legacy_tables(to: SocketAddr) -> Vec<String> {
    let tables = switchyard_iptables::legacy_tables().into_iter();
    let of_family = tables.filter(|(family, _)| *family == IpFamily::of(&to.ip()));
    of_family.map(|(_, table)| table).collect()
}

#[cfg(test)]
mod tests;
