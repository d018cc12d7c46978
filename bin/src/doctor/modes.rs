//! Modes that this node cannot run.

use switchyard_core::{model::Code, proxier::Mode};

use super::{
    Known,
    report::{Finding, Level, Outcome},
};
use crate::{backends, select};

/// Probes the configured mode, or the modes of which the program would choose the best.
pub(super) fn usable(known: &Known) -> Outcome {
    let named = known.loaded.named_mode();
    if named != Some(Mode::USERSPACE) {
        known.privileged()?;
    }
    let backends = backends::all(&known.loaded, &Default::default(), &Default::default())?;
    let chosen = select::choose(named, |mode| select::probe(&backends, mode));
    let (finding, because) = match chosen {
        Err(error) => ("This node can run no proxy as configured".to_owned(), error.to_string()),
        Ok(chosen) => match chosen.warning {
            Some(warning) => {
                (format!("{} would serve this node in another mode", chosen.mode), warning)
            }
            None => return Ok(Vec::new()),
        },
    };
    Ok(vec![Finding {
        code: Code::new("SWY0407"),
        level: Level::Error,
        finding,
        because,
        remedy: "load what is missing, or name another mode (--proxy-mode)".to_owned(),
    }])
}
