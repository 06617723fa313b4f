//! Processing of requests before they reach a resource: authentication, attributes, limits, audit log and traces.

pub mod audit;
pub mod authentication;
pub mod context;
mod impersonation;
pub mod limits;
pub mod middleware;
pub mod trace;
