//! Built-in interpretation of kinds: replicas and their revision, retained fields, reflected and aggregated status,
//! health and dependencies.
//!
//! [`native`] has one entry per Kubernetes kind, [`thirdparty`] one per third-party kind that Karmada supports. For
//! an operation without a rule, the caller uses Karmada's default (no replicas, the complete status, healthy).

mod container_status;
pub mod dependencies;
pub mod health;
pub mod job_status;
pub mod native;
pub mod replicas;
pub mod status;
pub mod thirdparty;
