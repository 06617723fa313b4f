//! Every decision and reconcile loop: propagate, schedule, override, apply, collect status.
//!
//! [`admission`] decides what is stored at all and is pure. [`plan`] decides and is pure; [`act`] reads the world,
//! asks `plan` and writes what it is told.

pub mod act;
pub mod admission;
pub mod error;
pub mod plan;

pub use error::Error;
