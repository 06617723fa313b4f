//! Works: the form in which a template travels to a member, and how a manifest meets the object already there.

pub mod apply;
pub mod construct;
pub mod exclusive;
pub mod holder;
pub mod managed;
pub mod prune;
pub mod retain;
