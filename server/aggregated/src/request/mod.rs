//! A request on its way to its resource: who sends it, what it is about, and the layers that it passes.

pub mod audit;
pub mod authentication;
pub mod context;
pub mod limits;
pub mod middleware;
pub mod trace;
