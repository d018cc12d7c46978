//! The command `switchyard render`, which prints what would be programmed.

use std::io::{self, Write};

use switchyard_core::proxier::Mode;
use switchyard_kernel::{families, nftables::json::Document};

use crate::backends;
use crate::config::{
    cli::RenderFormat,
    settings::{Settings, SourceSettings},
};
use crate::tracked::{self, TrackedError};

#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error("render needs --manifests DIR")]
    NoManifests,
    #[error("{0} mode cannot be rendered; use nftables")]
    Mode(Mode),
    #[error(transparent)]
    Tracked(#[from] TrackedError),
    #[error("cannot print the transaction as JSON")]
    Json(#[source] serde_json::Error),
    #[error("cannot write")]
    Output(#[from] io::Error),
}

/// Prints to `output` the transaction that makes an empty node serve the manifests, and to
/// `problems` the problems of the manifests. Addresses of the node's interfaces are not used: node
/// ports are served on the addresses in the Node object and in the configuration.
pub fn render(
    settings: &Settings,
    format: RenderFormat,
    output: &mut dyn Write,
    problems: &mut dyn Write,
) -> Result<(), RenderError> {
    let SourceSettings::Manifests(directory) = &settings.source else {
        return Err(RenderError::NoManifests);
    };
    if settings.backend.mode != Mode::NFTABLES {
        return Err(RenderError::Mode(settings.backend.mode));
    }
    let tracker = tracked::tracked(settings, directory, &switchyard_nft::PROFILE, problems)?;
    let config = backends::nft_config(&settings.backend, families());
    let transaction = switchyard_nft::render(&config, tracker.state());
    match format {
        RenderFormat::Nft => write!(output, "{transaction}")?,
        RenderFormat::Json => {
            let document = Document(&transaction);
            if !document.nft_loads() {
                writeln!(
                    problems,
                    "nft does not load the hash of the algorithm maglev from JSON; --format=nft prints \
                     what nft loads"
                )?;
            }
            serde_json::to_writer_pretty(&mut *output, &document).map_err(json_error)?;
            writeln!(output)?;
        }
    }
    Ok(output.flush()?)
}

/// Returns the error of the output if that was the cause.
fn json_error(error: serde_json::Error) -> RenderError {
    if error.is_io() { RenderError::Output(error.into()) } else { RenderError::Json(error) }
}
