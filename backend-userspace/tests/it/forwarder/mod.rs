//! Tests with real sockets on loopback addresses.

mod counters;
mod ports;
mod sctp;
mod support;
mod tcp;
mod udp;
