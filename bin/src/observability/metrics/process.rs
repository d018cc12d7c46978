//! The `process_*` metrics of every exporter, read from `/proc`.

use std::fs;

use prometheus::{Counter, Gauge, IntCounter, IntGauge};
use rustix::param::{clock_ticks_per_second, page_size};

use super::maker::Maker;

/// CPU time, memory, file descriptors, network traffic and start of this process.
pub struct ProcessMetrics {
    cpu: Counter,
    resident: IntGauge,
    virtual_size: IntGauge,
    open_files: IntGauge,
    most_files: Gauge,
    most_virtual: Gauge,
    received: IntCounter,
    transmitted: IntCounter,
    start: Option<u64>,
}

/// The fields of `/proc/self/stat` that are used.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// User and system time in clock ticks.
    cpu: u64,
    /// Clock ticks from the start of the system to the start of the process.
    start: u64,
    /// The size of the virtual memory in bytes.
    virtual_size: u64,
    /// The size of the resident memory in pages.
    resident: u64,
}

impl Stat {
    /// Parses the line. The second field is the program's name, which may contain any character.
    fn parse(line: &str) -> Option<Self> {
        let (_, after_name) = line.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        // proc(5) counts from 1, and `fields` begins with the third field.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu: field(14)? + field(15)?,
            start: field(22)?,
            virtual_size: field(23)?,
            resident: field(24)?,
        })
    }

    fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/self/stat").ok()?)
    }
}

impl ProcessMetrics {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        let metrics = Self {
            cpu: make.register(Counter::new(
                "process_cpu_seconds_total",
                "Total user and system CPU time spent in seconds.",
            )?)?,
            resident: make
                .gauge("process_resident_memory_bytes", "Resident memory size in bytes.")?,
            virtual_size: make
                .gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.")?,
            open_files: make.gauge("process_open_fds", "Number of open file descriptors.")?,
            most_files: make.register(Gauge::new(
                "process_max_fds",
                "Maximum number of open file descriptors.",
            )?)?,
            most_virtual: make.register(Gauge::new(
                "process_virtual_memory_max_bytes",
                "Maximum amount of virtual memory available in bytes.",
            )?)?,
            received: make.counter(
                "process_network_receive_bytes_total",
                "Number of bytes received by the process over the network.",
            )?,
            transmitted: make.counter(
                "process_network_transmit_bytes_total",
                "Number of bytes sent by the process over the network.",
            )?,
            start: Stat::read().and_then(|stat| start_time(&stat)),
        };
        let start = make.gauge(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
        )?;
        start.set(metrics.start.and_then(|start| start.try_into().ok()).unwrap_or(0));
        Ok(metrics)
    }

    /// Returns the time when the process started, in seconds since 1970.
    pub fn start(&self) -> Option<u64> {
        self.start
    }

    /// Updates the metrics. Calls must not overlap, since each call adds the difference to a
    /// counter.
    pub(super) fn refresh(&self) {
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            self.open_files.set(entries.count().try_into().unwrap_or(i64::MAX));
        }
        if let Ok(limits) = fs::read_to_string("/proc/self/limits") {
            for (gauge, name) in
                [(&self.most_files, "Max open files"), (&self.most_virtual, "Max address space")]
            {
                if let Some(limit) = limit(&limits, name) {
                    gauge.set(limit as f64);
                }
            }
        }
        // As in other exporters, these are the bytes of the whole network namespace.
        if let Some((received, transmitted)) =
            fs::read_to_string("/proc/self/net/netstat").ok().and_then(|text| octets(&text))
        {
            self.received.inc_by(received.saturating_sub(self.received.get()));
            self.transmitted.inc_by(transmitted.saturating_sub(self.transmitted.get()));
        }
        let Some(stat) = Stat::read() else { return };
        let seconds = stat.cpu as f64 / clock_ticks_per_second() as f64;
        self.cpu.inc_by((seconds - self.cpu.get()).max(0.0));
        let bytes = stat.resident.saturating_mul(page_size() as u64);
        self.resident.set(bytes.try_into().unwrap_or(i64::MAX));
        self.virtual_size.set(stat.virtual_size.try_into().unwrap_or(i64::MAX));
    }
}

/// Returns the soft limit of this name in `/proc/<pid>/limits`, `u64::MAX` if unlimited.
fn limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// Returns the received and the sent bytes in `/proc/<pid>/net/netstat`, which has a line of names
/// and a line of values.
fn octets(netstat: &str) -> Option<(u64, u64)> {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let find = |name| {
        let mut pairs = names.split_whitespace().zip(values.split_whitespace());
        pairs.find(|(found, _)| *found == name)?.1.parse().ok()
    };
    Some((find("InOctets")?, find("OutOctets")?))
}

/// Returns the time when the process started, in seconds since 1970.
fn start_time(stat: &Stat) -> Option<u64> {
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 =
        system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + stat.start / clock_ticks_per_second())
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    #[test]
    fn the_name_of_the_program_does_not_matter() {
        let line = "42 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 100 23 11 12 13 14 15 16 5000 4096 77 1 2";
        let stat = Stat { cpu: 123, start: 5000, virtual_size: 4096, resident: 77 };
        assert_eq!(Stat::parse(line), Some(stat));
        assert_eq!(Stat::parse("42 (a) S 1 2"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn limits_and_traffic_are_read() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\n\
                      Max open files            1024        4096   files\n\
                      Max address space         unlimited   unlimited   bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(1024));
        assert_eq!(limit(limits, "Max address space"), Some(u64::MAX));
        assert_eq!(limit(limits, "Max locks"), None);
        let netstat = "TcpExt: A InOctets\nTcpExt: 1 2\n\
                       IpExt: InMcast InOctets OutOctets\nIpExt: 0 300 40\n";
        assert_eq!(octets(netstat), Some((300, 40)));
        assert_eq!(octets("TcpExt: A\nTcpExt: 1\n"), None);
    }

    #[test]
    fn this_process_is_described() {
        let metrics = ProcessMetrics::new(&Maker::new(&Registry::new())).unwrap();
        let memory = vec![1u8; 8 << 20];
        metrics.refresh();
        assert!(metrics.resident.get() > 1 << 20, "{}", metrics.resident.get());
        assert!(metrics.virtual_size.get() > metrics.resident.get());
        assert!(metrics.open_files.get() > 2);
        assert!(metrics.most_files.get() >= metrics.open_files.get() as f64);
        // The process has just started.
        let now = jiff::Timestamp::now().as_second() as u64;
        let start = metrics.start().unwrap();
        assert!(start <= now + 1 && now - start < 3600, "{start} {now}");
        let before = metrics.cpu.get();
        let mut sum = 0u64;
        let begin = std::time::Instant::now();
        while begin.elapsed() < std::time::Duration::from_millis(60) {
            sum = memory.iter().map(|byte| u64::from(*byte)).sum();
        }
        assert_eq!(sum, 8 << 20);
        metrics.refresh();
        assert!(metrics.cpu.get() > before, "{before}");
    }
}
