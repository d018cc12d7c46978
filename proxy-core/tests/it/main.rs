//! Tests of the public API, on objects decoded from JSON. One program, so that it is linked once.

mod conflicts;
mod decoding;
mod deltas;
mod health_checks;
mod node;
mod properties;
mod reconfiguring;
mod routes;
mod runner;
mod scale;
mod services;
mod slices;
mod support;
mod topology;
