//! Scheduling: bindings get their clusters and replicas.

pub mod descheduler;
pub mod scheduler;
pub mod workload_rebalancer;
