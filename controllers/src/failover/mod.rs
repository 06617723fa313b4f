//! Failover: workloads leave clusters that are tainted or where they are unhealthy, and return.

pub mod application_failover;
pub mod failback;
pub mod graceful_eviction;
pub mod taint_manager;
