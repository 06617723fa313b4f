//! The policies, bindings and webhook configurations of the control plane, kept up to date by watches.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crowsnest_admission::configurations::{DELETION_PROTECTION, webhook_name};
use crowsnest_component_base::retry::{Backoff, Delays};
use crowsnest_registry::admission::GROUP;
use crowsnest_registry::storage::Revision;
use futures::StreamExt;
use kube::Api;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::watch;

/// Watched resources with their kinds.
const RESOURCES: [(&str, &str); 6] = [
    ("mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
    ("mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding"),
    ("mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    ("validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
    ("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
    ("validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
];

/// Versions of the group, the preferred one first. Some resources are not served in `v1` by all control planes.
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];

const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// Interval at which the control plane is checked for a resource that it does not serve.
const NOT_SERVED_INTERVAL: Duration = Duration::from_secs(60);

/// Objects of the watched resources.
#[derive(Default)]
pub(super) struct Configurations {
    listed: RwLock<HashMap<&'static str, ResourceObjects>>,
    /// Number of resources that have been listed.
    listed_count: watch::Sender<usize>,
}

#[derive(Default)]
struct ResourceObjects {
    revision: Revision,
    objects: BTreeMap<String, Value>,
}

/// Reason why the watch of a resource ended.
#[derive(Debug, thiserror::Error)]
enum WatchEndError {
    #[error("cannot read the discovery document: {0}")]
    Discovery(#[source] kube::Error),
    #[error("the watch ended: {0}")]
    Watch(#[source] watcher::Error),
}

impl Configurations {
    /// Number of changes of a resource's objects; 0 before its first list.
    pub(super) fn revision(&self, resource: &str) -> Revision {
        self.listed.read().get(resource).map_or(0, |listed| listed.revision)
    }

    /// Objects of a resource, sorted by name.
    pub(super) fn objects(&self, resource: &str) -> Vec<Value> {
        self.listed.read().get(resource).map_or_else(Vec::new, |listed| listed.objects.values().cloned().collect())
    }

    /// Waits until all resources have been listed. False if that takes longer than `timeout`.
    pub(super) async fn wait_for_sync(&self, timeout: Duration) -> bool {
        let mut listed_count = self.listed_count.subscribe();
        let all = listed_count.wait_for(|listed_count| *listed_count == RESOURCES.len());
        tokio::time::timeout(timeout, all).await.is_ok_and(|result| result.is_ok())
    }

    /// Follows all resources; does not end.
    pub(super) async fn follow(&self, control_plane: &kube::Client) {
        futures::future::join_all(RESOURCES.map(|names| self.follow_resource(control_plane, names))).await;
    }

    async fn follow_resource(&self, control_plane: &kube::Client, (resource, kind): (&'static str, &'static str)) {
        let mut delays = RETRY_BACKOFF.delays();
        loop {
            let delay = match self.watch(control_plane, resource, kind, &mut delays).await {
                Ok(()) => NOT_SERVED_INTERVAL,
                Err(error) => {
                    let error = error.to_string();
                    tracing::warn!(
                        resource,
                        error,
                        "cannot read the admission configuration; run \"crowsnest doctor\""
                    );
                    delays.next_delay()
                }
            };
            tokio::time::sleep(delay).await;
        }
    }

    /// Watches a resource. Returns if the control plane does not serve it. Resets `delays` when the resource is listed.
    async fn watch(
        &self,
        control_plane: &kube::Client,
        resource: &'static str,
        kind: &str,
        delays: &mut Delays,
    ) -> Result<(), WatchEndError> {
        let Some(version) = served_version(control_plane, resource).await.map_err(WatchEndError::Discovery)? else {
            self.replace(resource, BTreeMap::new());
            return Ok(());
        };
        let gvk = GroupVersionKind::gvk(GROUP, version, kind);
        let api: Api<DynamicObject> =
            Api::all_with(control_plane.clone(), &ApiResource::from_gvk_with_plural(&gvk, resource));
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
        let mut relisted = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => relisted = BTreeMap::new(),
                Ok(Event::InitApply(object)) => relisted.extend(named_object(&object)),
                Ok(Event::InitDone) => {
                    delays.reset();
                    self.replace(resource, std::mem::take(&mut relisted));
                }
                Ok(Event::Apply(object)) => self.change(resource, |objects| objects.extend(named_object(&object))),
                Ok(Event::Delete(object)) => {
                    let name = object.metadata.name.unwrap_or_default();
                    self.change(resource, |objects| drop(objects.remove(&name)));
                }
                // Another version is served now, or the permission was removed.
                Err(error @ watcher::Error::InitialListFailed(_)) => return Err(WatchEndError::Watch(error)),
                Err(error) => {
                    tracing::warn!(resource, %error, "a watch of the admission configuration failed and is repeated")
                }
            }
        }
        Ok(())
    }

    fn replace(&self, resource: &'static str, objects: BTreeMap<String, Value>) {
        self.change(resource, |current| *current = objects);
        let listed_count = self.listed.read().len();
        self.listed_count.send_replace(listed_count);
    }

    fn change(&self, resource: &'static str, change: impl FnOnce(&mut BTreeMap<String, Value>)) {
        let mut listed = self.listed.write();
        let listed = listed.entry(resource).or_default();
        listed.revision += 1;
        change(&mut listed.objects);
    }
}

/// The version in which the control plane serves a resource; `None` if it does not.
async fn served_version(control_plane: &kube::Client, resource: &str) -> Result<Option<&'static str>, kube::Error> {
    for version in VERSIONS {
        let api_resources = match control_plane.list_api_group_resources(&format!("{GROUP}/{version}")).await {
            Ok(list) => list.resources,
            Err(kube::Error::Api(status)) if status.code == 404 => continue,
            Err(error) => return Err(error),
        };
        if api_resources.iter().any(|candidate| candidate.name == resource) {
            return Ok(Some(version));
        }
    }
    Ok(None)
}

/// An object by its name.
fn named_object(object: &DynamicObject) -> Option<(String, Value)> {
    let name = object.metadata.name.clone()?;
    let mut object = serde_json::to_value(object).ok()?;
    remove_deletion_protection(&mut object);
    Some((name, object))
}

/// Removes the webhook of deletion protection from a configuration. It has rules for all kinds, but this server does
/// not call it: the control plane calls it, with the credentials that it requires, when the stored object of a public
/// kind is deleted.
fn remove_deletion_protection(object: &mut Value) {
    let deletion_protection = webhook_name(DELETION_PROTECTION);
    if let Some(webhooks) = object.get_mut("webhooks").and_then(Value::as_array_mut) {
        webhooks.retain(|webhook| webhook["name"].as_str() != deletion_protection);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn requests_wait_until_all_resources_are_listed() {
        let configurations = Configurations::default();
        let (last, others) = RESOURCES.split_last().unwrap();
        for (resource, _) in others {
            configurations.replace(resource, BTreeMap::new());
        }
        assert!(!configurations.wait_for_sync(Duration::ZERO).await);
        configurations.replace(last.0, [("b".to_owned(), json!(2)), ("a".to_owned(), json!(1))].into());
        assert!(configurations.wait_for_sync(Duration::ZERO).await);
        assert_eq!(configurations.objects(last.0), [json!(1), json!(2)]);
        let before = configurations.revision(last.0);
        configurations.change(last.0, |objects| drop(objects.remove("a")));
        assert_eq!((configurations.objects(last.0), configurations.revision(last.0)), (vec![json!(2)], before + 1));
    }

    #[test]
    fn the_webhook_of_deletion_protection_is_left_to_the_control_plane() {
        let hooks = json!([{"name": "resourcedeletionprotection.karmada.io"}, {"name": "mine.example.io"}]);
        let mut configuration = json!({"webhooks": hooks});
        remove_deletion_protection(&mut configuration);
        assert_eq!(configuration, json!({"webhooks": [{"name": "mine.example.io"}]}));
    }
}
