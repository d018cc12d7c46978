//! Forwards connections and datagrams to endpoints, on any system. The caller decides where it
//! listens.
//!
//! ```
//! use switchyard_userspace::forwarder::{Forwarder, ForwarderConfig};
//!
//! let forwarder = Forwarder::start(ForwarderConfig::default())?;
//! // For each Service port of a resolved state: `forwarder.serve(port)`, then `forwarder.listen(listener)`.
//! assert_eq!(forwarder.usage().connections, 0);
//! # Ok::<(), switchyard_userspace::forwarder::ForwarderError>(())
//! ```
//!
//! A [`Listener`] accepts a connection (`tcp`, `udp`), if its client may have another one
//! (`slots`); the Service port chooses an endpoint (`port`, `balance`), another one if the first
//! does not answer. Everything that differs between systems is behind one trait (`platform`).

mod balance;
mod clients;
mod counters;
mod ends;
mod everywhere;
mod limits;
mod listener;
mod local_ports;
mod loops;
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
#[cfg(test)]
mod testing;
mod threads;
mod udp;

pub(crate) use self::{balance::CAPABILITIES, panicked::Panicked};
pub use self::{
    clients::LocalClients,
    counters::{Counted, Counters},
    listener::{ListenError, Listener},
    shared::{ForwarderConfig, spare_descriptors},
    threads::{Forwarder, ForwarderError, Usage},
};
