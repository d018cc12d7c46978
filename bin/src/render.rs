//! `switchyard render`: prints what would be programmed.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use backend_nft::json::Document;
use proxy_core::{objects::Event, track::Tracker};

use crate::{
    backend,
    cli::RenderFormat,
    config::settings::{Mode, Settings, SourceSettings},
    source::manifests::{self, ManifestsError},
};

/// Why nothing could be printed.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// Only manifests can be rendered.
    #[error("render needs --manifests DIR")]
    NoManifests,
    /// Only nftables has something to print.
    #[error("{0} mode cannot be rendered; use nftables")]
    Mode(Mode),
    /// The directory.
    #[error("cannot read the manifests")]
    Manifests(#[from] ManifestsError),
    /// The transaction has no JSON form.
    #[error("cannot print the transaction as JSON")]
    Json(#[source] serde_json::Error),
    /// The output went wrong.
    #[error("cannot write")]
    Output(#[from] io::Error),
}

/// Prints to `output` the transaction that makes an empty node serve what the manifests say, and to
/// `problems` what is wrong with them. The node's interfaces are not looked at: node ports are
/// served where its Node and the configuration say.
pub fn render(
    settings: &Settings,
    format: RenderFormat,
    output: &mut dyn Write,
    problems: &mut dyn Write,
) -> Result<(), RenderError> {
    let SourceSettings::Manifests(directory) = &settings.source else {
        return Err(RenderError::NoManifests);
    };
    if settings.backend.mode != Mode::Nftables {
        return Err(RenderError::Mode(settings.backend.mode));
    }
    let tracker = tracked(settings, directory.clone(), problems)?;
    let transaction = backend_nft::render(&backend::nft_config(&settings.backend), tracker.state());
    match format {
        RenderFormat::Nft => write!(output, "{transaction}")?,
        RenderFormat::Json => {
            let document = Document(&transaction);
            serde_json::to_writer_pretty(&mut *output, &document).map_err(json_error)?;
            writeln!(output)?;
        }
    }
    Ok(output.flush()?)
}

/// The output's error, if it was that.
fn json_error(error: serde_json::Error) -> RenderError {
    if error.is_io() { RenderError::Output(error.into()) } else { RenderError::Json(error) }
}

/// A tracker that knows all the manifests.
fn tracked(
    settings: &Settings,
    directory: PathBuf,
    problems: &mut dyn Write,
) -> Result<Tracker, RenderError> {
    let (objects, unreadable) = manifests::read_dir(&directory)?;
    for problem in unreadable {
        writeln!(problems, "{problem}")?;
    }
    let mut tracker = Tracker::new(settings.node.clone());
    let mut found: Vec<_> =
        objects.into_iter().flat_map(|object| tracker.apply(Event::Apply(object))).collect();
    found.extend(tracker.resolve());
    for problem in found {
        writeln!(problems, "{problem}")?;
    }
    Ok(tracker)
}
