//! Storage protection: removes the finalizers of deleted claims that no pod uses and of deleted volumes that are not
//! bound. It runs in simulated members.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_apimachinery::unstructured::{list, text};
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::error::Error;
use crowsnest_registry::object::Object;
use crowsnest_registry::storage::{ObjectKey, ResourceKey, Store};
use crowsnest_registry::{Change, Edit, Registry};
use serde_json::Value;

use super::{core_resource, run_with_restart};
use crate::ApiServer;
use crate::admission::protection::{CLAIMS, VOLUMES, finalizer};

/// Delay before the removal of a finalizer is tried again after an error.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Watches claims, volumes and pods until the server stops.
pub async fn run(server: ApiServer) {
    run_with_restart(server, "storage protection", reconcile_changes).await;
}

async fn reconcile_changes(server: ApiServer) -> Result<Infallible, Error> {
    let registry = server.registry();
    let store = &registry.store;
    let since = store.revision();
    let watch = |plural: &str| store.watch(&ResourceKey::new("", plural), since);
    let (mut claims, mut volumes, mut pods) = (watch(CLAIMS)?, watch(VOLUMES)?, watch("pods")?);
    let mut candidates = DeletionCandidates::from_store(store);
    loop {
        let has_failures = candidates.release_unused(registry).await;
        let retry = async {
            match has_failures {
                true => tokio::time::sleep(RETRY_DELAY).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            changes = claims.next() => candidates.add(CLAIMS, changes?.iter().map(|change| &change.key)),
            changes = volumes.next() => candidates.add(VOLUMES, changes?.iter().map(|change| &change.key)),
            // A removed pod may have been the last one that used a claim.
            changes = pods.next() => drop(changes?),
            () = retry => {}
        }
    }
}

/// Objects that may be waiting for deletion, with the plural of their resource.
#[derive(Debug, Default)]
struct DeletionCandidates(BTreeSet<(&'static str, ObjectKey)>);

impl DeletionCandidates {
    fn from_store(store: &Store) -> Self {
        let deleted_objects = |plural: &'static str| {
            let objects = store.objects(&ResourceKey::new("", plural), "").into_iter();
            objects
                .filter(Object::is_deleting)
                .map(move |object| (plural, ObjectKey::new(object.namespace(), object.name())))
        };
        Self(deleted_objects(CLAIMS).chain(deleted_objects(VOLUMES)).collect())
    }

    fn add<'k>(&mut self, plural: &'static str, keys: impl Iterator<Item = &'k ObjectKey>) {
        self.0.extend(keys.map(|key| (plural, key.clone())));
    }

    /// Removes the finalizers of deleted objects that are not in use; objects in use remain candidates. Returns true if
    /// a removal failed and must be tried again.
    async fn release_unused(&mut self, registry: &Arc<Registry>) -> bool {
        let mut has_failures = false;
        let mut used_claims = UsedClaims::default();
        for (plural, key) in std::mem::take(&mut self.0) {
            match release_if_unused(registry, plural, &key, &mut used_claims).await {
                Ok(true) => {}
                Ok(false) => drop(self.0.insert((plural, key))),
                Err(error) if error.is(Reason::NotFound) => {}
                Err(error) => {
                    tracing::warn!(plural, %key, %error, "cannot remove the finalizer of a deleted storage object");
                    has_failures = true;
                    self.0.insert((plural, key));
                }
            }
        }
        has_failures
    }
}

/// Names of the claims that pods use, by namespace. The pods of a namespace are read once.
#[derive(Debug, Default)]
struct UsedClaims(HashMap<String, HashSet<String>>);

impl UsedClaims {
    fn contains(&mut self, store: &Store, key: &ObjectKey) -> bool {
        let names = self.0.entry(key.namespace().to_owned()).or_insert_with(|| {
            let pods = store.objects(&ResourceKey::new("", "pods"), key.namespace());
            pods.iter().flat_map(used_claims).collect()
        });
        names.contains(key.name())
    }
}

/// Removes the finalizer of an object if it is being deleted and not in use. Returns false if it is in use.
async fn release_if_unused(
    registry: &Arc<Registry>,
    plural: &'static str,
    key: &ObjectKey,
    used_claims: &mut UsedClaims,
) -> ApiResult<bool> {
    let store = &registry.store;
    let object = store.object(&ResourceKey::new("", plural), key).filter(Object::is_deleting);
    let Some((object, finalizer)) = object.zip(finalizer(plural)) else { return Ok(true) };
    if !object.finalizers().iter().any(|existing| existing == finalizer) {
        return Ok(true);
    }
    let is_in_use = match plural {
        VOLUMES => object["status"]["phase"] == "Bound",
        _ => used_claims.contains(store, key),
    };
    if is_in_use {
        return Ok(false);
    }
    let edit = Edit(Arc::new(move |live: &mut Value| {
        let remaining = live.finalizers().into_iter().filter(|existing| existing != finalizer).collect();
        live.set_finalizers(remaining);
        Ok(())
    }));
    let (resource, ctx) = (core_resource(registry, plural)?, loopback(key.namespace()));
    let options = loopback_options();
    registry.update(&resource, &ctx, key.name(), &Change::Edit(edit), &options, &mut Vec::new()).await?;
    Ok(true)
}

/// Names of the claims that a scheduled pod uses. A pod without a node cannot start with a claim that is being deleted.
fn used_claims(pod: &Value) -> Vec<String> {
    if text(pod, "/spec/nodeName").is_empty() {
        return Vec::new();
    }
    let has_ended = matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    let claim = |volume: &Value| {
        let ephemeral_name = || format!("{}-{}", pod.name(), text(volume, "name"));
        let ephemeral_claim = || (!has_ended && volume["ephemeral"].is_object()).then(ephemeral_name);
        volume["persistentVolumeClaim"]["claimName"].as_str().map(str::to_owned).or_else(ephemeral_claim)
    };
    list(pod, "/spec/volumes").iter().filter_map(claim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::named_claim("n", "Running", json!({"persistentVolumeClaim": {"claimName": "web-data"}}), true)]
    #[case::named_claim_of_ended_pod("n", "Succeeded", json!({"persistentVolumeClaim": {"claimName": "web-data"}}), true)]
    #[case::unscheduled_pod("", "Pending", json!({"persistentVolumeClaim": {"claimName": "web-data"}}), false)]
    #[case::another_claim("n", "Running", json!({"persistentVolumeClaim": {"claimName": "data"}}), false)]
    #[case::ephemeral_claim("n", "Running", json!({"name": "data", "ephemeral": {}}), true)]
    #[case::ephemeral_claim_of_ended_pod("n", "Failed", json!({"name": "data", "ephemeral": {}}), false)]
    fn scheduled_pods_use_claims(
        #[case] node: &str,
        #[case] phase: &str,
        #[case] volume: Value,
        #[case] expected: bool,
    ) {
        let spec = json!({"nodeName": node, "volumes": [volume]});
        let pod = json!({"metadata": {"name": "web"}, "spec": spec, "status": {"phase": phase}});
        assert_eq!(used_claims(&pod).contains(&"web-data".to_owned()), expected);
    }
}
