//! Syncs against a model of the tables, and the packets that pass meanwhile.

mod simulation;
