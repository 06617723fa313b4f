//! Controller of FederatedResourceQuotas, and writes of bindings in namespaces with a quota.

pub mod binding_writes;
pub mod federated_resource_quota;
