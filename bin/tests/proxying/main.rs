//! The program at work, in network namespaces of its own. These tests need root, and the programs
//! `ip` and `nft`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod cluster;
mod config_map;
mod descriptors;
mod doctor;
mod doctor_services;
mod drift;
mod drop_in;
mod endpoints;
mod events;
mod explain;
mod feed;
mod flows;
mod kubeadm;
mod logs;
mod manifests;
mod metrics;
mod namespace;
mod objects;
mod reload;
mod service_health;
mod signals;
mod standin;
mod start;
#[expect(dead_code, reason = "not all of it is needed here")]
#[path = "../../../kernel/tests/it/conntrack/table.rs"]
mod table;
mod top;
mod trace;
mod unprivileged;
