//! Tests of the public API, on objects decoded from JSON. One program, so that it is linked once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod conflicts;
mod decoding;
mod derived;
mod engine;
mod explain;
mod from_k8s_openapi;
mod health_checks;
mod lb_algorithms;
mod node;
mod properties;
mod proxy_protocol;
mod reconfiguring;
mod routes;
mod runner;
mod scale;
mod serialized;
mod services;
mod slices;
mod slow_start;
mod support;
mod topology;
mod transitions;
mod weights;
