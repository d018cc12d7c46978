//! The paths of the metrics server that `enableProfiling` enables: the verbosity of the log.

use bytes::Bytes;
use hyper::{Method, Request, StatusCode};

use super::{Answer, PLAIN_TEXT, answer, not_found, ok};

/// Sets the verbosity of the log. Returns false if nothing is logged.
pub(super) type SetVerbosity = Box<dyn Fn(u32) -> bool + Send + Sync>;

/// Returns the answer to a request for a path that starts with `/debug/`.
pub(super) fn answer_debug(request: &Request<Bytes>, set_verbosity: &SetVerbosity) -> Answer {
    match request.uri().path() {
        "/debug/flags" | "/debug/flags/" => ok("/debug/flags/\n\nv\n"),
        "/debug/flags/v" => put_verbosity(request, set_verbosity),
        _ => not_found(),
    }
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
