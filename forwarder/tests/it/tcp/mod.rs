//! TCP connections.

mod copying;
mod headers;
mod limits;
mod listeners;
mod retries;
