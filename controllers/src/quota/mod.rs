//! FederatedResourceQuotas.

pub mod federated_resource_quota;
pub mod over_quota;
