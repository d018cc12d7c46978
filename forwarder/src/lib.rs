#![doc = include_str!("../README.md")]
//!
//! Follow a connection: a [`Listener`] accepts it (`tcp`, `udp`), if its client may have another
//! one (`slots`); the Service port chooses an endpoint (`port`, `balance`), another one if the
//! first does not answer; then bytes go both ways until both ends have closed. Everything that
//! differs between systems is behind one trait (`platform`).
//!
//! A [`Forwarder`] has its own threads. What it knows of Service ports comes resolved from
//! `switchyard-core`.

mod balance;
mod clients;
mod counters;
mod ends;
mod forwarder;
mod listener;
mod panicked;
mod pipes;
mod platform;
mod port;
mod rate_limit;
mod shared;
mod showing;
mod slots;
mod socket;
mod source_ports;
mod supervisor;
mod task;
mod tcp;
mod udp;

pub use self::{
    balance::CAPABILITIES,
    clients::LocalClients,
    counters::{Counted, Counters},
    forwarder::{Forwarder, ForwarderError, Usage},
    listener::{ListenError, Listener},
    panicked::Panicked,
    shared::{ForwarderConfig, spare_descriptors},
};
