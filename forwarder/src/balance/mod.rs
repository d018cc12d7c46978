//! The choice of an endpoint: spreads, affinity, and endpoints that do not answer.
