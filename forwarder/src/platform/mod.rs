//! What differs between systems, behind one trait.

/// The system that the forwarder runs on.
pub(crate) trait Platform: Send + Sync {}

struct Portable;

impl Platform for Portable {}

/// Returns the system that the program was built for.
pub(crate) fn current() -> Box<dyn Platform> {
    Box::new(Portable)
}
