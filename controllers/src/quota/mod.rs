//! Controller of FederatedResourceQuotas, and writes of bindings in namespaces with a quota.

pub mod federated_resource_quota;
pub mod over_quota;
