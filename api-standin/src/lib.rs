//! api-standin
