//! Failover: evicts workloads from tainted clusters and from clusters where they are unhealthy. Failback moves them
//! back.

pub mod application_failover;
pub mod failback;
pub mod graceful_eviction;
pub mod taint_manager;
