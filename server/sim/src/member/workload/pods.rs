//! Creates, claims and deletes the pods of a workload.

use crate::member::context::{FIELD_MANAGER, create_params};
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
use crate::member::context::MemberContext;
use crate::member::informer::Object;
use crate::member::pod::PodState;
use crate::member::recorder::{Source, Subject};
use crate::member::store::{Index, StoreObject};
use crowsnest_component_base::client_errors::describe_cause;

/// Maximum number of pods of a workload that are written concurrently.
const MAX_CONCURRENT_WRITES: usize = 16;

/// A workload as the owner of pods and the subject of events.
#[derive(Debug, Clone)]
pub struct WorkloadOwner {
    pub subject: Subject,
    pub source: Source,
}

impl WorkloadOwner {
    pub fn new<K>(object: &Object<K>, component: &'static str) -> Self
    where
        K: Resource<DynamicType = ()> + k8s_openapi::Resource + Send + Sync + 'static,
    {
        Self {
            subject: Subject::new(K::API_VERSION, K::KIND, object.key(), object.uid()),
            source: Source { component, host: None },
        }
    }

    /// A controller owner reference.
    pub fn owner_reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: self.subject.api_version.into(),
            kind: self.subject.kind.into(),
            name: self.subject.key.name.to_string(),
            uid: self.subject.uid.to_string(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    /// Records an event of the workload.
    pub fn record_event(
        &self,
        context: &MemberContext,
        is_warning: bool,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        context.recorder.record(self.subject.clone(), self.source.clone(), is_warning, reason, message);
    }
}

/// A pod from a template, with a generated name.
pub fn from_template(owner: &WorkloadOwner, template: &PodTemplateSpec) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", owner.subject.key.name)),
            namespace: Some(owner.subject.key.namespace.to_string()),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner.owner_reference()]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Creates pods. If some cannot be created, returns the last error; the others are created.
pub async fn create(context: &MemberContext, owner: &WorkloadOwner, pods: Vec<Pod>) -> Result<()> {
    let api = context.api::<Pod>(&owner.subject.key.namespace);
    let mut outcomes = futures::stream::iter(pods)
        .map(|pod| {
            let api = api.clone();
            async move { api.create(&create_params(), &pod).await }
        })
        .buffer_unordered(MAX_CONCURRENT_WRITES);
    let mut failure = None;
    while let Some(outcome) = outcomes.next().await {
        match outcome {
            Ok(pod) => {
                let pod = context.apply_pod(pod);
                owner.record_event(context, false, "SuccessfulCreate", format!("Created pod: {}", pod.key.name));
            }
            Err(error) => failure = Some(error),
        }
    }
    let Some(error) = failure else { return Ok(()) };
    if !matches!(&error, kube::Error::Api(status) if status.code == 404) {
        owner.record_event(context, true, "FailedCreate", format!("Error creating: {}", describe_cause(&error)));
    }
    Err(Error::api(format!("create pods of {}", owner.subject.key))(error))
}

/// Deletes pods with their own grace period.
pub async fn delete(context: &MemberContext, owner: &WorkloadOwner, pods: &[Arc<PodState>]) -> Result<()> {
    let mut outcomes = futures::stream::iter(pods.to_vec())
        .map(|pod| async move {
            let outcome = context.delete_pod(&pod.key, &pod.uid, None).await;
            (pod, outcome)
        })
        .buffer_unordered(MAX_CONCURRENT_WRITES);
    while let Some((pod, outcome)) = outcomes.next().await {
        outcome?;
        owner.record_event(context, false, "SuccessfulDelete", format!("Deleted pod: {}", pod.key.name));
    }
    Ok(())
}

/// Adopts matching orphans, releases pods that no longer match, and returns the pods of a workload. A workload that is
/// being deleted adopts no pods.
pub async fn claim(
    context: &MemberContext,
    owner: &WorkloadOwner,
    selector: &Selector,
    is_deleted: bool,
) -> Result<Vec<Arc<PodState>>> {
    let mut claimed = Vec::new();
    for pod in context.pods.owned_by(&owner.subject.uid) {
        if selector.matches(&pod.labels) {
            claimed.push(pod);
        } else if pod.deletion.is_none() {
            set_owner(context, &pod, Value::Null).await?;
        }
    }
    if is_deleted || selector.is_empty() {
        return Ok(claimed);
    }
    for pod in context.pods.by_index(&Index::Orphan(owner.subject.key.namespace.clone())) {
        if pod.is_active() && selector.matches(&pod.labels) {
            claimed.push(set_owner(context, &pod, json!([owner.owner_reference()])).await?);
        }
    }
    Ok(claimed)
}

/// Minimum age at which a finished pod is replaced: a pod that its node rejects would otherwise be recreated in a
/// tight loop.
const MIN_REPLACEABLE_AGE: SignedDuration = SignedDuration::from_secs(1);

/// Time until a finished pod can be replaced; `None` if it can be replaced now.
pub fn time_until_replaceable(pod: &PodState, now: Timestamp) -> Option<Duration> {
    let wait = MIN_REPLACEABLE_AGE - now.duration_since(pod.created);
    wait.is_positive().then(|| Duration::try_from(wait).unwrap_or_default() + Duration::from_millis(1))
}

/// Replaces the finalizers of a pod. Fails with a conflict if the pod has changed since it was read. If the pod is
/// deleted with its last finalizer, it is removed from the store.
pub async fn set_finalizers(context: &MemberContext, pod: &PodState, finalizers: &[&str]) -> Result<()> {
    let patch = conditional_patch(pod, "finalizers", json!(finalizers));
    let api = context.api::<Pod>(&pod.key.namespace);
    match api.patch(&pod.key.name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&patch)).await {
        Ok(patched) => {
            let metadata = &patched.metadata;
            let is_deleted = metadata.deletion_timestamp.is_some()
                && metadata.deletion_grace_period_seconds == Some(0)
                && metadata.finalizers.as_ref().is_none_or(Vec::is_empty);
            if is_deleted {
                context.pods.remove(&pod.key, &pod.uid);
            } else {
                context.apply_pod(patched);
            }
            Ok(())
        }
        Err(error) => {
            let error = Error::api(format!("change finalizers of pod {}", pod.key))(error);
            let is_deleted = error.is_not_found() || error.is_conflict() && !refresh(context, pod).await?;
            if is_deleted {
                context.pods.remove(&pod.key, &pod.uid);
                return Ok(());
            }
            Err(error)
        }
    }
}

/// Reads a pod again; returns false if it was deleted, even if another pod has its name.
async fn refresh(context: &MemberContext, pod: &PodState) -> Result<bool> {
    let api = context.api::<Pod>(&pod.key.namespace);
    let current = api.get_opt(&pod.key.name).await.map_err(Error::api(format!("read pod {}", pod.key)))?;
    let same_pod = current.filter(|current| current.metadata.uid.as_deref() == Some(&*pod.uid));
    Ok(same_pod.map(|current| context.apply_pod(current)).is_some())
}

/// Merge patch of a field of a pod's metadata, which fails with a conflict if the pod has changed since it was read.
fn conditional_patch(pod: &PodState, field: &str, value: Value) -> Value {
    json!({"metadata": {"uid": &*pod.uid, "resourceVersion": pod.version.to_string(), field: value}})
}

async fn set_owner(context: &MemberContext, pod: &PodState, owners: Value) -> Result<Arc<PodState>> {
    let patch = conditional_patch(pod, "ownerReferences", owners);
    let api = context.api::<Pod>(&pod.key.namespace);
    let patched = api.patch(&pod.key.name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&patch)).await;
    Ok(context.apply_pod(patched.map_err(Error::api(format!("change owner of pod {}", pod.key)))?))
}
