//! The parts of a process that run against a control plane: members, cache, controllers and proxy; leader election among
//! replicas.
//!
//! `server/serve` and `server/up` start a [`roles::Roles`]; the aggregated APIs read its parts.

pub mod controller_runner;
pub mod leader_election;
pub mod metrics;
pub mod roles;
pub mod shared_stream;
