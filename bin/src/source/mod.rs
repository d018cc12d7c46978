//! Where objects come from.
//!
//! A source is a task that tells the trackers about Services, EndpointSlices, Nodes and
//! ServiceCIDRs: it sends [`proxy_core::objects::Event`]s for ever. It ends only when nobody
//! listens any more (the receiver was dropped), or with an error if it cannot start at all.
//! Trouble while it runs is logged and retried, and the last good state stays.
//!
//! Every source sends one [`Replace`](proxy_core::objects::Event::Replace) per kind when it knows
//! all objects of that kind, and single changes after it.

pub mod kube;
pub mod manifests;
