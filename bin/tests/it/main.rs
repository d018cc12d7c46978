//! Tests without a network namespace: the program's arguments and output, the manifests in
//! `deploy/`, and the scripts that make images and packages and try images on clusters.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod chart;
mod deploy;
mod e2e;
mod image;
mod monitoring;
mod package;
mod plugin;
mod program;
