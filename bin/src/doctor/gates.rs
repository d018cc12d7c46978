//! Tables of other programs that drop the connections of Services.

use switchyard_core::explain::ClosedChain;

use super::{
    Known,
    report::{Finding, Level, Outcome},
};
use crate::other_tables;

/// Finds chains that let no new connection pass.
pub(super) fn closed(known: &Known) -> Outcome {
    known.privileged()?;
    let (chains, _) = other_tables::closed(known.likely_mode(), &[])?;
    Ok(chains.into_iter().map(finding).collect())
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
