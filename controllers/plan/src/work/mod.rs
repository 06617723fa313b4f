//! Works: building them from templates, and applying their manifests to member objects.

pub mod apply;
pub mod construct;
pub mod exclusive;
pub mod managed;
pub mod owner;
pub mod prune;
pub mod retain;
