//! Every decision and reconcile loop: propagate, schedule, override, apply, collect status.
//!
//! [`admission`] decides what is stored at all and is pure. [`plan`] decides and is pure; [`act`] reads the world,
//! asks `plan` and writes what it is told. [`interpreter`] says what a kind means, by its users' scripts or by `plan`.

pub mod act;
pub mod admission;
pub mod error;
pub mod interpreter;
pub mod plan;

pub use error::Error;
