//! Tests of the capture modes, in network namespaces of single threads, with real sockets and
//! rules, and of the forwarder. One program, so that it is linked once.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod addresses;
mod clean_up;
mod clients;
mod common;
mod forwarder;
mod loopback;
mod redirect;
