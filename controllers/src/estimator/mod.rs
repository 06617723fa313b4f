//! Estimators: how many replicas a member has room for.

pub mod client_pool;
pub mod facts;
pub mod unschedulable;
