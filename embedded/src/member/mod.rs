//! Simulated member clusters: an API server with controllers, a scheduler and kubelets that act like a real cluster's.

pub mod informer;
pub mod node;
pub mod pod;
pub mod podlife;
pub mod queue;
pub mod recorder;
pub mod resources;
pub mod scheduler;
pub mod selector;
pub mod shape;
pub mod store;
pub mod workload;
pub mod world;
