//! Controllers: they read the state of the control plane and of the members from the cache, let `crowsnest-plan` decide, and carry out
//! the decision.

pub mod act;
pub mod error;
pub mod runtime;

pub use error::Error;
