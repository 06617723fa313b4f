//! OverridePolicies, as last dispatched by the informer.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crowsnest_api::keys::PolicyKey;
use crowsnest_api::policy::OverrideSpec;
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::unstructured;
use crowsnest_plan::overriding::OverridePolicy;
use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::Value;

use crate::Error;
use crate::cache::{CachedObject, Change};
use crate::runtime::context::Context;

/// OverridePolicies of one scope, by name.
#[derive(Clone, Default)]
pub struct Overrides {
    policies: Vec<(String, Arc<OverrideSpec>)>,
}

/// Name and spec of a policy. `None` if it is being deleted or cannot be decoded.
fn decode_override(policy: &Value) -> Option<(String, Arc<OverrideSpec>)> {
    if unstructured::is_terminating(policy) {
        return None;
    }
    match OverrideSpec::deserialize(policy.get("spec").unwrap_or(&Value::Null)) {
        Ok(spec) => Some((unstructured::name(policy).to_owned(), Arc::new(spec))),
        Err(error) => {
            tracing::warn!(policy = unstructured::name(policy), %error, "cannot decode an override policy");
            None
        }
    }
}

impl Overrides {
    /// Reads the ClusterOverridePolicies from the cache.
    pub async fn list_cluster_wide(context: &Context) -> Result<Self, Error> {
        let policies = context.list(&context.kinds.cluster_override_policy, None).await?;
        Ok(Overrides { policies: policies.iter().map(CachedObject::view).filter_map(decode_override).collect() })
    }

    pub fn to_policies(&self) -> Vec<OverridePolicy<'_>> {
        self.policies.iter().map(|(name, spec)| OverridePolicy { name, spec }).collect()
    }
}

/// All OverridePolicies, as last dispatched.
#[derive(Default)]
pub(super) struct OverrideCache {
    policies: RwLock<BTreeMap<PolicyKey, Arc<OverrideSpec>>>,
}

impl OverrideCache {
    pub(super) fn update(&self, change: &Change) {
        let key = PolicyKey::from_object(change.object());
        match change.current().and_then(decode_override) {
            Some((_, spec)) => drop(self.policies.write().insert(key, spec)),
            None => drop(self.policies.write().remove(&key)),
        }
    }

    /// Removes policies of a scope that are not in `keys`.
    pub(super) fn retain(&self, namespaced: bool, keys: &HashSet<NamespacedName>) {
        self.policies
            .write()
            .retain(|key, _| key.is_cluster_scoped() == namespaced || keys.contains(key.as_namespaced_name()));
    }

    pub(super) fn in_namespace(&self, namespace: &str) -> Overrides {
        let all = self.policies.read();
        let first = PolicyKey::new(namespace, "");
        let policies = all.range(first..).take_while(|(key, _)| key.namespace == namespace);
        Overrides { policies: policies.map(|(key, spec)| (key.name.clone(), Arc::clone(spec))).collect() }
    }
}
