//! The running kernel: its version, and the IP families that it has.

mod families;
mod version;

pub use self::{families::families, version::KernelVersion};
