//! Works: building them from templates, and applying their manifests to member objects.

pub mod apply;
pub mod construct;
pub mod exclusive;
pub mod holder;
pub mod managed;
pub mod prune;
pub mod retain;
