//! A request on its way to its resource: who sends it, what it is about, and the layers that it passes.

pub(crate) mod audit;
pub(crate) mod authentication;
pub(crate) mod context;
pub(crate) mod limits;
pub(crate) mod middleware;
pub(crate) mod trace;
