//! Processes that run beside a member: the agent of a cluster that the control plane cannot dial, and the scheduler estimator.

pub mod agent;
pub mod estimator;
