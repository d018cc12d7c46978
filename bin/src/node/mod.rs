//! This node's Node: whether the configuration fits it, and what is logged about it.
//!
//! The engine parses the Node, waits for its facts and follows it. [`config_check`] holds
//! kube-proxy's checks of a configuration against those facts, and [`watch`] applies them when the
//! facts are known.

pub mod config_check;
pub mod watch;
