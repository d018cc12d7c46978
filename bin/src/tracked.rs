//! A tracker of manifests, for commands that answer before anything is programmed.

use std::{
    io::{self, Write},
    path::Path,
};

use switchyard_core::{
    explain::{Known, Picture},
    objects::{Event, Kind},
    proxier::Profile,
    track::Tracker,
};
use switchyard_kernel::{netlink::Error, route};
use switchyard_sources::manifests::{self, ManifestsError};

use crate::config::settings::Settings;

/// Why manifests cannot be tracked.
#[derive(Debug, thiserror::Error)]
pub enum TrackedError {
    #[error("cannot read the manifests")]
    Manifests(#[from] ManifestsError),
    #[error("cannot write")]
    Output(#[from] io::Error),
}

/// Returns a tracker that knows all manifests of the directory, with the node's settings and a
/// backend of this profile, which is that of any kernel. Writes the problems of the manifests.
pub fn tracked(
    settings: &Settings,
    directory: &Path,
    profile: &Profile,
    problems: &mut dyn Write,
) -> Result<Tracker, TrackedError> {
    let (objects, unreadable) = manifests::read_dir(directory)?;
    for problem in unreadable {
        writeln!(problems, "{problem}")?;
    }
    let mut tracker = Tracker::new(settings.node.clone());
    tracker.set_capabilities(profile.capabilities, profile.mode);
    let events = objects.into_iter().map(Event::Apply).chain(Kind::ALL.map(Event::Listed));
    let mut found: Vec<_> = events.flat_map(|event| tracker.apply(event)).collect();
    found.extend(tracker.resolve());
    for problem in found {
        writeln!(problems, "{problem}")?;
    }
    Ok(tracker)
}

/// Returns what the tracker knows with the addresses of this host: as the running proxy, and unlike
/// commands that answer on any machine.
pub fn picture(mut tracker: Tracker) -> Result<Picture, Error> {
    tracker.set_interface_addresses(route::interface_addresses()?);
    tracker.resolve();
    let services = tracker.names().filter_map(|name| tracker.service(name, &|_| true)).collect();
    Ok(Picture { node: Known::node(&tracker), services })
}
