//! TCP connections.

mod copying;
mod listeners;
mod retries;
