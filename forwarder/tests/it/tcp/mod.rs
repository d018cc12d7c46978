//! TCP connections.

mod copying;
mod headers;
mod listeners;
mod retries;
