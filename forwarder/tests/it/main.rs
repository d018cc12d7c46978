//! Tests with real sockets on loopback addresses.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod counters;
mod ports;
mod sctp;
mod support;
mod tcp;
mod udp;
