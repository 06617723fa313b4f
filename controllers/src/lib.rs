//! Controllers: they read the state of the control plane and the members from the cache, let `crowsnest-plan` decide,
//! and write the result.
//!
//! Folders of controllers are named after Karmada's, in snake case and without `controller`. Kinds are written as in
//! their APIs: `endpoint_slice_collect` for `endpointslice-collect-controller`.

pub mod autoscaling;
pub mod cache;
pub mod cluster;
pub mod error;
pub mod estimator;
pub mod failover;
pub mod journal;
pub mod metrics;
pub mod multicluster;
pub mod propagation;
pub mod quota;
pub mod reports;
pub mod runtime;
pub mod scheduling;
pub mod search;
pub mod shared;

pub use error::Error;
