//! Removal of conntrack entries that contradict the resolved state.
