//! Tests against a real kernel and the real programs, in network namespaces of single threads.

mod common;
mod leftovers;
mod monitor;
mod programs;
