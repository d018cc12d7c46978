//! The userspace backend.
