//! The two-way swap: Switchyard takes over from kube-proxy, and kube-proxy from Switchyard, under
//! load. kube-proxy is [`packet_rig::swap`]'s stand-in for it.
//!
//! `SWITCHYARD_BIN` names the proxy (else: what cargo built).

mod cleanup;
mod fixtures;
mod support;
mod taken_over;
mod taking_over;
