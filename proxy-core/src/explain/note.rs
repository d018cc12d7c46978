//! The worst that is wrong with a Service, in few words.

use std::sync::Arc;

use super::cause;
use crate::{
    model::Code,
    state::{Action, ResolvedServicePort},
};

/// The worst that is wrong with a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The code, whose page has more.
    pub code: Code,
    /// The words.
    pub text: String,
}

impl Note {
    /// Returns the worst that is wrong with a Service that has these ports; `refused` is the reason
    /// why the node refuses one of its ports, and `stuck` the number of its stuck connections.
    pub fn of(
        ports: &[Arc<ResolvedServicePort>],
        refused: Option<&str>,
        stuck: u64,
    ) -> Option<Self> {
        let frontends =
            || ports.iter().flat_map(|port| port.frontends.iter().map(move |f| (port, f)));
        let has = |action| frontends().any(|(_, frontend)| frontend.action == action);
        let note = |cause: cause::Cause, text: String| Some(Self { code: cause.code, text });
        if let Some(reason) = refused {
            return note(cause::REFUSED, format!("refused: {reason}"));
        }
        if has(Action::Reject) {
            return note(cause::NO_ENDPOINT, "no ready endpoint".to_owned());
        }
        if has(Action::Drop) {
            return note(cause::NONE_HERE, "Local: no endpoint here".to_owned());
        }
        if stuck > 0 {
            let (are, plural) = if stuck == 1 { ("is", "") } else { ("are", "s") };
            return note(cause::STUCK, format!("{stuck} connection{plural} {are} stuck"));
        }
        let drops_others =
            frontends().any(|(port, f)| f.action == Action::ExternalLocal && port.local.is_empty());
        drops_others.then(|| Self {
            code: cause::NONE_HERE.code,
            text: "Local: drops outsiders here".to_owned(),
        })
    }
}
