//! Functions that several controllers share.

pub mod bindings;
pub mod clusters;
pub mod templates;
pub mod works;
