//! Storage protection: removes the finalizers of deleted claims that no pod uses and of deleted volumes that are not
//! bound. For members.

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

use super::{core, run_with_restart};
use crate::ApiServer;
use crate::admission::protection::{CLAIMS, VOLUMES, finalizer};

/// Delay before a finalizer is removed again after an error.
const RETRY: Duration = Duration::from_secs(1);

/// Follows claims, volumes and pods until the server stops.
pub async fn run(server: ApiServer) {
    run_with_restart(server, "storage protection", reconcile_changes).await;
}

async fn reconcile_changes(server: ApiServer) -> Result<Infallible, Error> {
    let registry = server.registry();
    let store = &registry.store;
    let since = store.revision();
    let watch = |plural: &str| store.watch(&ResourceKey::new("", plural), since);
    let (mut claims, mut volumes, mut pods) = (watch(CLAIMS)?, watch(VOLUMES)?, watch("pods")?);
    let mut deleted = Deleted::stored(store);
    loop {
        let again = deleted.release(registry).await;
        let retry = async {
            match again {
                true => tokio::time::sleep(RETRY).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            changes = claims.next() => deleted.add(CLAIMS, changes?.iter().map(|change| &change.key)),
            changes = volumes.next() => deleted.add(VOLUMES, changes?.iter().map(|change| &change.key)),
            // A removed pod may have been the last one that used a claim.
            changes = pods.next() => drop(changes?),
            () = retry => {}
        }
    }
}

/// Objects that may be in deletion, with the plural of their resource.
#[derive(Debug, Default)]
struct Deleted(BTreeSet<(&'static str, ObjectKey)>);

impl Deleted {
    fn stored(store: &Store) -> Self {
        let of = |plural: &'static str| {
            let objects = store.objects(&ResourceKey::new("", plural), "").into_iter();
            objects
                .filter(Object::is_deleting)
                .map(move |object| (plural, ObjectKey::new(object.namespace(), object.name())))
        };
        Self(of(CLAIMS).chain(of(VOLUMES)).collect())
    }

    fn add<'k>(&mut self, plural: &'static str, keys: impl Iterator<Item = &'k ObjectKey>) {
        self.0.extend(keys.map(|key| (plural, key.clone())));
    }

    /// Removes the finalizers of objects that are not in use and keeps the other objects. Returns true if an object must
    /// be tried again.
    async fn release(&mut self, registry: &Arc<Registry>) -> bool {
        let mut failed = false;
        let mut used = UsedClaims::default();
        for (plural, key) in std::mem::take(&mut self.0) {
            match release(registry, plural, &key, &mut used).await {
                Ok(true) => {}
                Ok(false) => drop(self.0.insert((plural, key))),
                Err(error) if error.is(Reason::NotFound) => {}
                Err(error) => {
                    tracing::warn!(plural, %key, %error, "cannot remove the finalizer of a deleted storage object");
                    failed = true;
                    self.0.insert((plural, key));
                }
            }
        }
        failed
    }
}

/// Names of the claims that pods use, by namespace. The pods of a namespace are read once.
#[derive(Debug, Default)]
struct UsedClaims(HashMap<String, HashSet<String>>);

impl UsedClaims {
    fn contains(&mut self, store: &Store, key: &ObjectKey) -> bool {
        let used = self.0.entry(key.namespace().to_owned()).or_insert_with(|| {
            let pods = store.objects(&ResourceKey::new("", "pods"), key.namespace());
            pods.iter().flat_map(used_claims).collect()
        });
        used.contains(key.name())
    }
}

/// Removes the finalizer of an object in deletion. Returns false if the object is in use.
async fn release(
    registry: &Arc<Registry>,
    plural: &'static str,
    key: &ObjectKey,
    used: &mut UsedClaims,
) -> ApiResult<bool> {
    let store = &registry.store;
    let object = store.object(&ResourceKey::new("", plural), key).filter(Object::is_deleting);
    let Some((object, finalizer)) = object.zip(finalizer(plural)) else { return Ok(true) };
    if !object.finalizers().iter().any(|known| known == finalizer) {
        return Ok(true);
    }
    let in_use = match plural {
        VOLUMES => object["status"]["phase"] == "Bound",
        _ => used.contains(store, key),
    };
    if in_use {
        return Ok(false);
    }
    let edit = Edit(Arc::new(move |live: &mut Value| {
        let kept = live.finalizers().into_iter().filter(|known| known != finalizer).collect();
        live.set_finalizers(kept);
        Ok(())
    }));
    let (resource, ctx) = (core(registry, plural)?, loopback(key.namespace()));
    let options = loopback_options();
    registry.update(&resource, &ctx, key.name(), &Change::Edit(edit), &options, &mut Vec::new()).await?;
    Ok(true)
}

/// Names of the claims that a scheduled pod uses. A pod without a node cannot start with a claim in deletion.
fn used_claims(pod: &Value) -> Vec<String> {
    if text(pod, "/spec/nodeName").is_empty() {
        return Vec::new();
    }
    let ended = matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    let claim = |volume: &Value| {
        let own_name = || format!("{}-{}", pod.name(), text(volume, "name"));
        let own = || (!ended && volume["ephemeral"].is_object()).then(own_name);
        volume["persistentVolumeClaim"]["claimName"].as_str().map(str::to_owned).or_else(own)
    };
    list(pod, "/spec/volumes").iter().filter_map(claim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::by_name("n", "Running", json!({"persistentVolumeClaim": {"claimName": "web-data"}}), true)]
    #[case::ended("n", "Succeeded", json!({"persistentVolumeClaim": {"claimName": "web-data"}}), true)]
    #[case::without_a_node("", "Pending", json!({"persistentVolumeClaim": {"claimName": "web-data"}}), false)]
    #[case::of_another_name("n", "Running", json!({"persistentVolumeClaim": {"claimName": "data"}}), false)]
    #[case::ephemeral("n", "Running", json!({"name": "data", "ephemeral": {}}), true)]
    #[case::ephemeral_of_an_ended_pod("n", "Failed", json!({"name": "data", "ephemeral": {}}), false)]
    fn pods_use_claims(#[case] node: &str, #[case] phase: &str, #[case] volume: Value, #[case] expected: bool) {
        let spec = json!({"nodeName": node, "volumes": [volume]});
        let pod = json!({"metadata": {"name": "web"}, "spec": spec, "status": {"phase": phase}});
        assert_eq!(used_claims(&pod).contains(&"web-data".to_owned()), expected);
    }
}
