//! Every decision and reconcile loop: propagate, schedule, override, apply, collect status.
//!
//! [`plan`] decides and is pure; [`act`] reads the world, asks `plan` and writes what it is told.

pub mod act;
pub mod error;
pub mod plan;

pub use error::Error;
