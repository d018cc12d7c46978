//! The reconciler against the kernel: entries are made through ctnetlink, in network namespaces of
//! the tests' own, which end with their threads. These tests need root.

mod endpoints;
mod frontends;
mod lifetime;
mod support;
mod table;
