//! The ipvs backend.
