//! The iptables backend.
