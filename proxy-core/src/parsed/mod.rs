//! Objects, parsed: from the fields of the API to typed values, per family.
//!
//! A value that cannot be used is left out and becomes a [`problem::Problem`] with the name of the
//! object and the field. Parsing needs no other object; the `track` module keeps what is parsed
//! here, and the `resolve` module decides what becomes of it.

pub(crate) mod endpoint;
pub(crate) mod lb_algorithm;
mod names;
pub(crate) mod node;
pub(crate) mod problem;
pub(crate) mod proxy_protocol;
pub(crate) mod service;
pub(crate) mod slice;
pub(crate) mod slow_start;
mod values;
mod weights;
