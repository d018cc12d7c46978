//! packet-rig
