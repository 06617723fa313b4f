//! Graceful eviction: a copy stays until its replacement is healthy.

pub mod exclusive;
