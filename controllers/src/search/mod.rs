//! Search: ResourceRegistries and their backend stores, and graph sinks.

pub mod backend_stores;
pub mod graph_sinks;
pub mod resource_registry;
