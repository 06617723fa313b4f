//! Functions that several controllers share.

pub mod clusters;
pub mod templates;
pub mod works;
