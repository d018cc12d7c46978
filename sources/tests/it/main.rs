//! Each source: the API server's stand-in with its faults, and directories of manifests.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod kube;
mod manifests;
