//! Tables of other programs that drop the connections of Services.

use switchyard_core::explain::ClosedChain;

use super::{
    Known, needs_privilege, not_readable,
    report::{Finding, Level, Outcome},
};
use crate::other_tables;

/// Finds chains that let no new connection pass.
pub(super) fn closed(known: &Known) -> Outcome {
    if !known.is_privileged {
        return needs_privilege();
    }
    match other_tables::closed(known.likely_mode(), &[]) {
        Ok((chains, _)) => Outcome::Made(chains.into_iter().map(finding).collect()),
        Err(error) => not_readable(&error),
    }
}

fn finding(chain: ClosedChain) -> Finding {
    Finding {
        code: ClosedChain::CODE,
        level: Level::Error,
        finding: format!(
            "The {} drops new connections {}, those to Services among them",
            chain.table(),
            chain.whose()
        ),
        because: chain.why(),
        remedy: chain.remedy,
    }
}
