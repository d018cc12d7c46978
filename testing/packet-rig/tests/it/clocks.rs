//! Clocks that are set: below the program, nothing waits by the clock of the wall, and the program
//! serves while that is set forward and back, whatever the clock since the start of the machine
//! says.

use std::{
    collections::BTreeSet,
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use packet_rig::{CommandLine, WorkDir, binary, run_case, suite};
use test_netns::run;

use super::{documents::sources, semantics::root};

/// A library that sets clocks for the program that loads it, by the seconds in a file: the clock of
/// the wall by those in `CLOCK_AHEAD`, and the clock since the start of the machine by those in
/// `CLOCK_LATER`.
pub const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    char text[32] = "";
    char *name = getenv(clock == CLOCK_REALTIME ? "CLOCK_AHEAD" : "CLOCK_LATER");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) > 0) time->tv_sec += atol(text);
        close(file);
    }
    return result;
}
"#;

/// Ten years, in seconds.
const YEARS: i64 = 315_360_000;

/// The files that read the time of day, for what is shown or was promised in it.
const READERS: [&str; 4] = [
    // A first sequence number.
    "kernel/src/netlink/socket.rs",
    // The expiration of a plugin's credentials, from which a time to wait is derived once.
    "sources/src/kube/client/plugin.rs",
    // The times that /healthz shows; timeouts are those of a monotonic clock.
    "switchyard/src/builder.rs",
    "switchyard/src/health/proxy.rs",
];

#[test]
fn nothing_waits_by_the_time_of_day() {
    let crates = ["backend-", "kernel", "model", "proxy-core", "sources", "switchyard"];
    let mut paths = Vec::new();
    sources(&root(), &mut paths);
    let mut readers = BTreeSet::new();
    for path in paths {
        let name = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
        let is_of_product = crates.iter().any(|of| name.starts_with(of)) && name.contains("/src/");
        if !is_of_product || ["/testing/", "/tests"].iter().any(|part| name.contains(part)) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let is_reader = ["SystemTime::now(", "Timestamp::now(", "Zoned::now(", "Utc::now("]
            .iter()
            .any(|call| code.contains(call));
        if is_reader {
            readers.insert(name);
        }
    }
    let known = READERS.map(str::to_owned);
    assert_eq!(readers, BTreeSet::from(known), "a timer must not depend on the time of day");
}

#[test]
fn clocks_that_are_set_change_nothing() {
    let files = WorkDir::new("clocks").unwrap();
    let source = files.replace("", "clock.c", CLOCK).unwrap();
    let (library, ahead) = (source.with_extension("so"), source.with_extension("ahead"));
    run(&format!("cc -shared -fPIC -o {} {}", library.display(), source.display()));
    let set = |seconds: i64| files.replace("", "clock.ahead", &seconds.to_string()).unwrap();
    let preload = format!("LD_PRELOAD={} CLOCK_AHEAD={}", library.display(), ahead.display());
    let year = || run(&format!("env {preload} date +%Y")).trim().parse::<i64>().unwrap();
    set(0);
    let now = year();
    set(-YEARS);
    assert!(now - year() >= 9, "the clock is not set");
    let command = format!(
        "unshare --time --monotonic {YEARS} --boottime {YEARS} env {preload} {} \
         --kubeconfig {{kubeconfig}} {{flags}}",
        binary::find().unwrap().display()
    );
    let subject = CommandLine::parse(&command).unwrap().named("clocks", "nftables");
    let cases = suite::cases().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for seconds in [YEARS, 0, -YEARS, 3600].into_iter().cycle() {
                set(seconds);
                thread::sleep(Duration::from_millis(150));
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let names =
            ["weights::slow-start", "health::local-endpoints", "changes::services-come-and-go"];
        let subject = &subject;
        let running = names.map(|name| (name, scope.spawn(|| run_case(&cases[name], subject))));
        let ended = running.map(|(name, case)| (name, case.join()));
        is_over.store(true, Ordering::Relaxed);
        for (name, result) in ended {
            result.unwrap().unwrap_or_else(|failure| panic!("{name}: {}", failure.report()));
        }
    });
}
