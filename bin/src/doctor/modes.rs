//! Modes that this node cannot run.

use switchyard_core::{model::Code, proxier::Mode};

use super::{
    Known, needs_privilege, not_readable,
    report::{Finding, Level, Outcome},
};
use crate::{backends, select};

/// Probes the configured mode, or the modes of which the program would choose the best.
pub(super) fn usable(known: &Known) -> Outcome {
    if !known.is_privileged && known.loaded.named_mode() != Some(Mode::USERSPACE) {
        return needs_privilege();
    }
    let backends = match backends::all(&known.loaded, &Default::default(), &Default::default()) {
        Ok(backends) => backends,
        Err(error) => return not_readable(&error),
    };
    let named = known.loaded.named_mode();
    let chosen = select::choose(named, |mode| select::probe(&backends, mode));
    let (finding, because) = match chosen {
        Err(error) => ("This node can run no proxy as configured".to_owned(), error.to_string()),
        Ok(chosen) => match chosen.warning {
            Some(warning) => {
                (format!("{} would serve this node in another mode", chosen.mode), warning)
            }
            None => return None.into(),
        },
    };
    Some(Finding {
        code: Code::new("SWY0407"),
        level: Level::Error,
        finding,
        because,
        remedy: "load what is missing, or name another mode (--proxy-mode)".to_owned(),
    })
    .into()
}
