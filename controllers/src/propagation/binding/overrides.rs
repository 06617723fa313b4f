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
use crate::cache::{Cached, Change};
use crate::runtime::context::Context;

/// OverridePolicies of one scope, by name.
#[derive(Clone, Default)]
pub struct Overrides {
    policies: Vec<(String, Arc<OverrideSpec>)>,
}

/// Name and spec of a policy. `None` if it is being deleted or cannot be decoded.
fn read_override(policy: &Value) -> Option<(String, Arc<OverrideSpec>)> {
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
    pub async fn cluster_wide(context: &Context) -> Result<Self, Error> {
        let policies = context.list(&context.kinds.cluster_override_policy, None).await?;
        Ok(Overrides { policies: policies.iter().map(Cached::view).filter_map(read_override).collect() })
    }

    pub fn as_plan(&self) -> Vec<OverridePolicy<'_>> {
        self.policies.iter().map(|(name, spec)| OverridePolicy { name, spec }).collect()
    }
}

/// All OverridePolicies, as last dispatched.
#[derive(Default)]
pub(super) struct KnownOverrides {
    known: RwLock<BTreeMap<PolicyKey, Arc<OverrideSpec>>>,
}

impl KnownOverrides {
    pub(super) fn learn(&self, change: &Change) {
        let key = PolicyKey::of(change.object());
        match change.current().and_then(read_override) {
            Some((_, spec)) => drop(self.known.write().insert(key, spec)),
            None => drop(self.known.write().remove(&key)),
        }
    }

    /// Removes policies of a scope that are not in `keys`.
    pub(super) fn keep(&self, namespaced: bool, keys: &HashSet<NamespacedName>) {
        self.known
            .write()
            .retain(|key, _| key.is_cluster_scoped() == namespaced || keys.contains(key.as_namespaced_name()));
    }

    pub(super) fn of(&self, namespace: &str) -> Overrides {
        let known = self.known.read();
        let first = PolicyKey::new(namespace, "");
        let own = known.range(first..).take_while(|(key, _)| key.namespace == namespace);
        Overrides { policies: own.map(|(key, spec)| (key.name.clone(), Arc::clone(spec))).collect() }
    }
}
