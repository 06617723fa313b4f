//! Estimators: how many replicas a member has room for.

pub mod client;
pub mod client_pool;
pub mod error;
pub mod facts;
pub mod unschedulable;

pub use client::{EstimatorOptions, Estimators};
pub use error::EstimatorError;
