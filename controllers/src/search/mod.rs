//! Search: ResourceRegistries and their backend stores.

pub mod backend_stores;
pub mod resource_registry;
