//! Scheduling: assigns clusters and replicas to bindings.

pub mod descheduler;
pub mod scheduler;
pub mod workload_rebalancer;
