//! Creates, claims and deletes the pods of a workload.

use crate::member::world::{MANAGER, creation};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::selector::Selector;
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::member::informer::Object;
use crate::member::pod::PodState;
use crate::member::recorder::{Source, Subject};
use crate::member::store::{Index, Stored};
use crate::member::world::World;
use crowsnest_component_base::client_errors::reason;

/// Pods written concurrently for a workload.
const AT_ONCE: usize = 16;

/// The owner of pods.
#[derive(Debug, Clone)]
pub struct Parent {
    pub subject: Subject,
    pub source: Source,
}

impl Parent {
    pub fn new<K>(object: &Object<K>, api_version: &'static str, kind: &'static str, component: &'static str) -> Self
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        Self {
            subject: Subject::new(api_version, kind, object.key(), object.uid()),
            source: Source { component, host: None },
        }
    }

    /// A controller owner reference.
    pub fn reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: self.subject.api_version.into(),
            kind: self.subject.kind.into(),
            name: self.subject.key.name.to_string(),
            uid: self.subject.uid.to_string(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    pub fn record(&self, world: &World, warning: bool, reason: &'static str, message: impl Into<String>) {
        world.recorder.record(self.subject.clone(), self.source.clone(), warning, reason, message);
    }
}

/// A pod from a template, with a generated name.
pub fn from_template(parent: &Parent, template: &PodTemplateSpec) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", parent.subject.key.name)),
            namespace: Some(parent.subject.key.namespace.to_string()),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![parent.reference()]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Creates pods; stops at the first failure and keeps the created ones.
pub async fn create(world: &World, parent: &Parent, pods: Vec<Pod>) -> Result<()> {
    let api = world.api::<Pod>(&parent.subject.key.namespace);
    let mut outcomes = futures::stream::iter(pods)
        .map(|pod| {
            let api = api.clone();
            async move { api.create(&creation(), &pod).await }
        })
        .buffer_unordered(AT_ONCE);
    let mut failure = None;
    while let Some(outcome) = outcomes.next().await {
        match outcome {
            Ok(pod) => {
                let pod = world.saw_pod(pod);
                parent.record(world, false, "SuccessfulCreate", format!("Created pod: {}", pod.key.name));
            }
            Err(error) => failure = Some(error),
        }
    }
    let Some(error) = failure else { return Ok(()) };
    if !matches!(&error, kube::Error::Api(status) if status.code == 404) {
        parent.record(world, true, "FailedCreate", format!("Error creating: {}", reason(&error)));
    }
    Err(Error::api(format!("create pods of {}", parent.subject.key))(error))
}

/// Deletes pods with their own grace period.
pub async fn delete(world: &World, parent: &Parent, pods: &[Arc<PodState>]) -> Result<()> {
    let mut outcomes = futures::stream::iter(pods.to_vec())
        .map(|pod| async move {
            let outcome = world.delete_pod(&pod.key, &pod.uid, None).await;
            (pod, outcome)
        })
        .buffer_unordered(AT_ONCE);
    while let Some((pod, outcome)) = outcomes.next().await {
        outcome?;
        parent.record(world, false, "SuccessfulDelete", format!("Deleted pod: {}", pod.key.name));
    }
    Ok(())
}

/// The pods of a workload, after adoption of matching orphans and release of pods that no longer match.
pub async fn claim(world: &World, parent: &Parent, selector: &Selector, deleting: bool) -> Result<Vec<Arc<PodState>>> {
    let mut claimed = Vec::new();
    for pod in world.pods.owned(&parent.subject.uid) {
        if selector.matches(&pod.labels) {
            claimed.push(pod);
        } else if pod.deletion.is_none() {
            set_owner(world, &pod, Value::Null).await?;
        }
    }
    if deleting || selector.is_empty() {
        return Ok(claimed);
    }
    for pod in world.pods.by(&Index::Orphan(parent.subject.key.namespace.clone())) {
        if pod.is_active() && selector.matches(&pod.labels) {
            claimed.push(set_owner(world, &pod, json!([parent.reference()])).await?);
        }
    }
    Ok(claimed)
}

/// Minimum age at which a finished pod is replaced: a pod that its node rejects would otherwise be recreated in a
/// tight loop.
const LEAST_AGE: SignedDuration = SignedDuration::from_secs(1);

/// Time until a finished pod can be replaced.
pub fn replaceable_in(pod: &PodState, now: Timestamp) -> Option<Duration> {
    let left = LEAST_AGE - now.duration_since(pod.created);
    left.is_positive().then(|| Duration::try_from(left).unwrap_or_default() + Duration::from_millis(1))
}

/// Replaces the finalizers of a pod that has not changed since it was read; otherwise fails with a conflict. A pod that is deleted with
/// its last finalizer is forgotten.
pub async fn set_finalizers(world: &World, pod: &PodState, finalizers: &[&str]) -> Result<()> {
    let patch = conditional(pod, "finalizers", json!(finalizers));
    let api = world.api::<Pod>(&pod.key.namespace);
    match api.patch(&pod.key.name, &PatchParams::apply(MANAGER), &Patch::Merge(&patch)).await {
        Ok(patched) => {
            let left = &patched.metadata;
            let goes = left.deletion_timestamp.is_some()
                && left.deletion_grace_period_seconds == Some(0)
                && left.finalizers.as_ref().is_none_or(Vec::is_empty);
            if goes {
                world.pods.remove(&pod.key, &pod.uid);
            } else {
                world.saw_pod(patched);
            }
            Ok(())
        }
        Err(error) => {
            let error = Error::api(format!("change finalizers of pod {}", pod.key))(error);
            let is_deleted = error.is_not_found() || error.is_conflict() && !refresh(world, pod).await?;
            if is_deleted {
                world.pods.remove(&pod.key, &pod.uid);
                return Ok(());
            }
            Err(error)
        }
    }
}

/// Reads a pod again; false if it was deleted. Another pod may have its name.
async fn refresh(world: &World, pod: &PodState) -> Result<bool> {
    let api = world.api::<Pod>(&pod.key.namespace);
    let found = api.get_opt(&pod.key.name).await.map_err(Error::api(format!("read pod {}", pod.key)))?;
    let same = found.filter(|found| found.metadata.uid.as_deref() == Some(&*pod.uid));
    Ok(same.map(|found| world.saw_pod(found)).is_some())
}

/// Merge patch of a field of a pod's metadata that is refused if the pod has changed since it was read.
fn conditional(pod: &PodState, field: &str, value: Value) -> Value {
    json!({"metadata": {"uid": &*pod.uid, "resourceVersion": pod.version.to_string(), field: value}})
}

async fn set_owner(world: &World, pod: &PodState, owners: Value) -> Result<Arc<PodState>> {
    let patch = conditional(pod, "ownerReferences", owners);
    let api = world.api::<Pod>(&pod.key.namespace);
    let patched = api.patch(&pod.key.name, &PatchParams::apply(MANAGER), &Patch::Merge(&patch)).await;
    Ok(world.saw_pod(patched.map_err(Error::api(format!("change owner of pod {}", pod.key)))?))
}
