//! Scheduler estimators: the number of replicas that fit into a member.

pub mod client;
pub mod client_pool;
pub mod error;
pub mod member_cache;
pub mod unschedulable;

pub use client::{EstimatorOptions, Estimators};
pub use error::EstimatorError;
