//! Scheduler of a simulated member: [`plan`] decides (pure), [`run`] binds.

pub mod fit;
pub mod plan;
pub mod run;

pub use run::start;
