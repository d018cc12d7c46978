//! TCP connections.

mod copying;
mod endings;
mod headers;
mod limits;
mod listeners;
mod retries;
