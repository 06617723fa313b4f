//! What a kind means: its replicas, how they are revised, what a member may decide itself, how its status is read and
//! added up, when it is healthy and what it depends on.
//!
//! [`native`] has one entry per built-in kind, [`thirdparty`] one per kind of another project that Karmada knows. An
//! operation a kind has no rule for is `None` there, and the caller falls back as Karmada does (no replicas, whole status,
//! healthy).

pub mod dependencies;
pub mod health;
mod job_status;
pub mod native;
pub mod replicas;
pub mod status;
pub mod thirdparty;
