//! The paths of the metrics server that `enableProfiling` enables: the verbosity of the log, and
//! the paths of Go's profiler.

use bytes::Bytes;
use hyper::{Method, Request, StatusCode};

use super::{Answer, PLAIN_TEXT, answer, not_found, ok};

/// Sets the verbosity of the log. Returns false if nothing is logged.
pub(super) type SetVerbosity = Box<dyn Fn(u32) -> bool + Send + Sync>;

/// The paths, as `/statusz` lists them.
pub(super) const PATHS: [&str; 5] = [
    "/debug/flags",
    "/debug/flags/v",
    "/debug/pprof/",
    "/debug/pprof/cmdline",
    "/debug/pprof/symbol",
];

/// Go's profiles, and why each is not available.
const PROFILES: [(&str, &str); 8] = [
    ("allocs", NO_HEAP),
    ("block", NO_RUNTIME),
    ("goroutine", NO_RUNTIME),
    ("heap", NO_HEAP),
    ("mutex", NO_RUNTIME),
    (
        "profile",
        "CPU profiles are taken from outside, where that disturbs nothing: \
         perf record --call-graph=dwarf -p PID",
    ),
    ("threadcreate", NO_RUNTIME),
    ("trace", "there is no tracer in this program: perf trace -p PID shows its system calls"),
];
const NO_HEAP: &str = "the allocator of this program keeps no profile; process_resident_memory_bytes \
                       of /metrics says how much memory there is";
const NO_RUNTIME: &str = "this program has no goroutines, and no runtime that counts what they do";

/// Returns the answer to a request for a path that starts with `/debug/`.
pub(super) fn answer_debug(request: &Request<Bytes>, set_verbosity: &SetVerbosity) -> Answer {
    match request.uri().path() {
        "/debug/flags" | "/debug/flags/" => ok("/debug/flags/\n\nv\n"),
        "/debug/flags/v" => put_verbosity(request, set_verbosity),
        path => match path.strip_prefix("/debug/pprof") {
            Some("" | "/") => ok(index()),
            Some("/cmdline") => ok(command_line()),
            // With this answer, Go's tool resolves addresses by itself.
            Some("/symbol") => ok("num_symbols: 0\n"),
            Some(rest) => {
                match PROFILES.iter().find(|(name, _)| rest.strip_prefix('/') == Some(*name)) {
                    Some((_, why)) => {
                        answer(StatusCode::NOT_IMPLEMENTED, PLAIN_TEXT, format!("{why}\n"))
                    }
                    None => not_found(),
                }
            }
            None => not_found(),
        },
    }
}

fn index() -> String {
    let mut page = "/debug/pprof/\n\ncmdline\nsymbol\n\nNot here:\n".to_owned();
    for (name, why) in PROFILES {
        page.push_str(&format!("{name}: {why}\n"));
    }
    page
}

/// Returns the arguments of the process, separated by NUL characters.
fn command_line() -> Vec<u8> {
    let arguments = std::env::args_os().map(|argument| argument.into_encoded_bytes());
    arguments.collect::<Vec<_>>().join(&0)
}

/// Changes `-v` of the running program, and returns the answer.
fn put_verbosity(request: &Request<Bytes>, set_verbosity: &SetVerbosity) -> Answer {
    if *request.method() != Method::PUT {
        let text = "unrecognized http method\n";
        return answer(StatusCode::NOT_ACCEPTABLE, PLAIN_TEXT, text);
    }
    let text = String::from_utf8_lossy(request.body());
    let text = text.trim();
    match text.parse() {
        Ok(verbosity) if set_verbosity(verbosity) => {
            tracing::info!(verbosity, "Verbosity changed");
            ok(format!("successfully set klog.logging.verbosity to {verbosity}"))
        }
        Ok(_) => {
            let text = "failed set klog.logging.verbosity: nothing is logged";
            answer(StatusCode::INTERNAL_SERVER_ERROR, PLAIN_TEXT, text)
        }
        Err(error) => {
            let text: String = text.chars().take(64).flat_map(char::escape_debug).collect();
            let text = format!("failed set klog.logging.verbosity {text}: {error}");
            answer(StatusCode::BAD_REQUEST, PLAIN_TEXT, text)
        }
    }
}
