//! Deployment controller: applies the actions of [`super::rollout`] and reports the state of the rollout.

mod status;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::selector::Selector;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::{Value, json};

use crate::error::Result;
use crate::member::context::{MemberContext, SharedObject};
use crate::member::informer::Object;
use crate::member::store::{Index, Key, StoreObject};

use super::pods::WorkloadOwner;
use super::rollout::{ReplicaSetView, RolloutTargets, next_action};
use super::{BULK_WRITE_DELAY, enqueue_owners, new_change_queue, revision, spawn_controller};

const HASH_LABEL: &str = "pod-template-hash";
const REVISION_ANNOTATION: &str = "deployment.kubernetes.io/revision";
const DESIRED_REPLICAS_ANNOTATION: &str = "deployment.kubernetes.io/desired-replicas";
const MAX_REPLICAS_ANNOTATION: &str = "deployment.kubernetes.io/max-replicas";
/// Annotations that a ReplicaSet does not inherit from its Deployment.
const OWN_ANNOTATIONS: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION_ANNOTATION,
    "deployment.kubernetes.io/revision-history",
    DESIRED_REPLICAS_ANNOTATION,
    MAX_REPLICAS_ANNOTATION,
    "deprecated.deployment.rollback.to",
];

pub fn start(context: &Arc<MemberContext>) {
    let keys = new_change_queue(&context.deployments);
    enqueue_owners(&context.replica_sets, "Deployment", &keys);
    // `Recreate` waits for terminating pods, whose deletion changes no ReplicaSet.
    let (queue, sets) = (keys.clone(), Arc::downgrade(&context.replica_sets));
    context.pods.on_change(move |old, new| {
        let (Some(pod), None, Some(sets)) = (old, new, sets.upgrade()) else { return };
        let Some(owner) = pod.owner.as_ref().filter(|owner| &*owner.kind == "ReplicaSet") else { return };
        let Some(set) = sets.get(&Key::new(&pod.key.namespace, &owner.name)) else { return };
        if let Some(deployment) =
            set.metadata.owner_references.iter().flatten().find(|owner| owner.kind == "Deployment")
        {
            queue.add(Key::new(&pod.key.namespace, &deployment.name));
        }
    });
    spawn_controller(context, "deployment", keys, 8, |context, key| async move { reconcile(&context, &key).await });
}

/// A Deployment during one reconciliation.
struct Rollout<'a> {
    context: &'a MemberContext,
    deployment: &'a Object<Deployment>,
    spec: &'a DeploymentSpec,
    owner: WorkloadOwner,
    sets: Vec<SharedObject<ReplicaSet>>,
    /// Views of `sets`, in the same order.
    views: Vec<ReplicaSetView>,
    now: Timestamp,
}

async fn reconcile(context: &MemberContext, key: &Key) -> Result<Option<Duration>> {
    let Some(deployment) = context.deployments.get(key) else { return Ok(None) };
    if context.is_suspended(deployment.uid()) {
        return Ok(Some(BULK_WRITE_DELAY));
    }
    let spec = &deployment.spec;
    let selector = Selector::from_label_selector_or_nothing(&spec.selector);
    if selector.is_empty() {
        return Ok(None);
    }
    let owner = WorkloadOwner::new(&deployment, "deployment-controller");
    let is_deleted = deployment.metadata.deletion_timestamp.is_some();
    let sets = claim(context, &owner, &selector, is_deleted).await?;
    let mut rollout =
        Rollout { context, deployment: &deployment, spec, owner, sets, views: Vec::new(), now: Timestamp::now() };
    rollout.refresh_views();
    let mut created = None;
    if !is_deleted {
        created = rollout.apply_next_action().await?;
        rollout.write_revision().await?;
    }
    let requeue_after = rollout.write_status(created.as_deref()).await?;
    if !is_deleted {
        rollout.delete_old_sets().await?;
    }
    Ok(requeue_after)
}

/// Adopts matching orphans and returns the Deployment's ReplicaSets.
async fn claim(
    context: &MemberContext,
    owner: &WorkloadOwner,
    selector: &Selector,
    is_deleted: bool,
) -> Result<Vec<SharedObject<ReplicaSet>>> {
    let mut sets = context.replica_sets.owned_by(&owner.subject.uid);
    if is_deleted {
        return Ok(sets);
    }
    for orphan in context.replica_sets.by_index(&Index::Orphan(owner.subject.key.namespace.clone())) {
        let labels = orphan.metadata.labels.clone().unwrap_or_default();
        if orphan.metadata.deletion_timestamp.is_none() && selector.matches(&labels) {
            let patch = json!({"metadata": {"uid": orphan.uid(), "ownerReferences": [owner.owner_reference()]}});
            sets.push(context.patch(&context.replica_sets, &orphan.key(), None, &patch).await?);
        }
    }
    Ok(sets)
}

fn parse_annotation(set: &ReplicaSet, name: &str) -> Option<i64> {
    set.metadata.annotations.as_ref()?.get(name)?.parse().ok()
}

/// The template of a ReplicaSet without the pod template hash.
fn template_of(set: &ReplicaSet) -> PodTemplateSpec {
    let mut template = set.spec.template.clone().unwrap_or_default();
    if let Some(labels) = template.metadata.as_mut().and_then(|meta| meta.labels.as_mut()) {
        labels.remove(HASH_LABEL);
    }
    template
}

impl Rollout<'_> {
    fn refresh_views(&mut self) {
        let newest = self
            .sets
            .iter()
            .filter(|set| template_of(set) == self.spec.template)
            .min_by_key(|set| (set.metadata.creation_timestamp.as_ref().map(|time| time.0), set.key()))
            .map(|set| set.uid().to_owned());
        let to_i32 = |count: i64| i32::try_from(count).unwrap_or(i32::MAX);
        self.views = self
            .sets
            .iter()
            .map(|set| {
                let status = set.status.clone().unwrap_or_default();
                ReplicaSetView {
                    name: set.key().name.to_string(),
                    created: set.metadata.creation_timestamp.as_ref().map(|time| time.0).unwrap_or_default(),
                    is_new: Some(set.uid()) == newest.as_deref(),
                    revision: parse_annotation(set, REVISION_ANNOTATION).unwrap_or_default(),
                    spec_replicas: set.spec.replicas.unwrap_or(1),
                    replicas: status.replicas,
                    ready: status.ready_replicas.unwrap_or_default(),
                    available: status.available_replicas.unwrap_or_default(),
                    pods: to_i32(self.context.pods.count(&Index::Owner(set.uid().into())) as i64),
                    desired: parse_annotation(set, DESIRED_REPLICAS_ANNOTATION).map(to_i32),
                    max: parse_annotation(set, MAX_REPLICAS_ANNOTATION).map(to_i32),
                }
            })
            .collect();
    }

    /// Applies the next action and returns the name of a created ReplicaSet.
    async fn apply_next_action(&mut self) -> Result<Option<String>> {
        let rollout_targets = RolloutTargets::new(self.spec);
        let action = next_action(&rollout_targets, &self.views);
        let mut created = None;
        if let Some(size) = action.create {
            created = Some(self.create_set(size, &rollout_targets).await?);
        }
        for scale in &action.scale {
            let Some(view) = self.views.iter().find(|view| view.name == scale.name) else { continue };
            let patch = json!({
                "metadata": {"annotations": {DESIRED_REPLICAS_ANNOTATION: rollout_targets.replicas.to_string(), MAX_REPLICAS_ANNOTATION: (rollout_targets.replicas + rollout_targets.max_surge).to_string()}},
                "spec": {"replicas": scale.replicas},
            });
            let key = Key::new(&self.owner.subject.key.namespace, &scale.name);
            self.context.patch(&self.context.replica_sets, &key, None, &patch).await?;
            if view.spec_replicas != scale.replicas {
                self.record_scaling_event(&scale.name, view.spec_replicas, scale.replicas);
            }
        }
        if !action.is_none() {
            self.sets = self.context.replica_sets.owned_by(&self.owner.subject.uid);
            self.refresh_views();
        }
        Ok(created)
    }

    fn record_scaling_event(&self, name: &str, from: i32, to: i32) {
        let direction = if to > from { "up" } else { "down" };
        let message = format!("Scaled {direction} replica set {name} from {from} to {to}");
        self.owner.record_event(self.context, false, "ScalingReplicaSet", message);
    }

    async fn create_set(&self, size: i32, rollout_targets: &RolloutTargets) -> Result<String> {
        let mut collisions =
            self.deployment.status.as_ref().and_then(|status| status.collision_count).unwrap_or_default();
        loop {
            let hash = revision::template_hash(&self.spec.template, collisions)?;
            let set = self.new_set(&hash, size, rollout_targets);
            match self.context.create(&self.context.replica_sets, &set).await {
                Ok(created) => {
                    let name = created.key().name.to_string();
                    if size > 0 {
                        self.record_scaling_event(&name, 0, size);
                    }
                    return Ok(name);
                }
                Err(error) if error.is_conflict() && collisions < 20 => collisions += 1,
                Err(error) => return Err(error),
            }
        }
    }

    fn new_set(&self, hash: &str, size: i32, rollout_targets: &RolloutTargets) -> ReplicaSet {
        let Key { namespace, name } = &self.owner.subject.key;
        let mut template = self.spec.template.clone();
        let meta = template.metadata.get_or_insert_default();
        meta.labels.get_or_insert_default().insert(HASH_LABEL.into(), hash.into());
        let mut selector: LabelSelector = self.spec.selector.clone();
        selector.match_labels.get_or_insert_default().insert(HASH_LABEL.into(), hash.into());
        let mut annotations = self.inherited_annotations();
        annotations.insert(DESIRED_REPLICAS_ANNOTATION.into(), rollout_targets.replicas.to_string());
        annotations
            .insert(MAX_REPLICAS_ANNOTATION.into(), (rollout_targets.replicas + rollout_targets.max_surge).to_string());
        annotations.insert(REVISION_ANNOTATION.into(), self.next_revision().to_string());
        ReplicaSet {
            metadata: ObjectMeta {
                name: Some(format!("{name}-{hash}")),
                namespace: Some(namespace.to_string()),
                labels: template.metadata.as_ref().and_then(|meta| meta.labels.clone()),
                annotations: Some(annotations),
                owner_references: Some(vec![self.owner.owner_reference()]),
                ..ObjectMeta::default()
            },
            spec: ReplicaSetSpec {
                replicas: Some(size),
                min_ready_seconds: self.spec.min_ready_seconds,
                selector,
                template: Some(template),
            },
            status: None,
        }
    }

    fn inherited_annotations(&self) -> BTreeMap<String, String> {
        let mut annotations = self.deployment.metadata.annotations.clone().unwrap_or_default();
        annotations.retain(|name, _| !OWN_ANNOTATIONS.contains(&name.as_str()));
        annotations
    }

    fn next_revision(&self) -> i64 {
        self.views.iter().filter(|view| !view.is_new).map(|view| view.revision).max().unwrap_or_default() + 1
    }

    /// Writes the highest revision to the ReplicaSet of the current template and to the Deployment.
    async fn write_revision(&mut self) -> Result<()> {
        let Some(index) = self.views.iter().position(|view| view.is_new) else { return Ok(()) };
        let revision = self.next_revision().max(self.views[index].revision);
        let set = self.sets[index].clone();
        let mut annotations = self.inherited_annotations();
        annotations.insert(REVISION_ANNOTATION.into(), revision.to_string());
        let existing = set.metadata.annotations.clone().unwrap_or_default();
        annotations.retain(|name, value| existing.get(name) != Some(value));
        let has_other_min_ready = set.spec.min_ready_seconds != self.spec.min_ready_seconds;
        if !annotations.is_empty() || has_other_min_ready {
            let patch = json!({"metadata": {"annotations": annotations}, "spec": {"minReadySeconds": self.spec.min_ready_seconds}});
            self.sets[index] = self.context.patch(&self.context.replica_sets, &set.key(), None, &patch).await?;
            self.refresh_views();
        }
        let current =
            self.deployment.metadata.annotations.as_ref().and_then(|annotations| annotations.get(REVISION_ANNOTATION));
        if current != Some(&revision.to_string()) {
            let patch = json!({"metadata": {"annotations": {REVISION_ANNOTATION: revision.to_string()}}});
            // As in kube-controller-manager, the annotation is written with the status: a change of the annotations of
            // the Deployment itself would increment its generation.
            self.context.patch(&self.context.deployments, &self.deployment.key(), Some("status"), &patch).await?;
        }
        Ok(())
    }

    async fn write_status(&self, created: Option<&str>) -> Result<Option<Duration>> {
        let current = self.context.deployments.get(&self.deployment.key());
        let current = current.filter(|current| current.uid() == self.deployment.uid());
        let Some(current) = current else { return Ok(None) };
        let observed_generation = self.deployment.metadata.generation;
        let (status, requeue_after) =
            status::compute_status(&current, self.spec, &self.views, created, observed_generation, self.now);
        self.context.set_status(&self.context.deployments, &current, current.status.as_ref(), &status).await?;
        Ok(requeue_after)
    }

    /// Deletes old, empty ReplicaSets above the history limit.
    async fn delete_old_sets(&self) -> Result<()> {
        let limit = usize::try_from(self.spec.revision_history_limit.unwrap_or(10)).unwrap_or_default();
        let mut old: Vec<_> = self
            .views
            .iter()
            .zip(&self.sets)
            .filter(|(view, set)| {
                !view.is_new && view.spec_replicas == 0 && view.pods == 0 && set.metadata.deletion_timestamp.is_none()
            })
            .collect();
        old.sort_by_key(|(view, _)| view.revision);
        let surplus = old.len().saturating_sub(limit);
        for (_, set) in old.into_iter().take(surplus) {
            self.context.delete(&self.context.replica_sets, set).await?;
        }
        Ok(())
    }
}

/// Annotations of a ReplicaSet in a synthetic load, equal to those that the controller would write.
pub fn replica_set_annotations(replicas: i32, surge: i32) -> Value {
    json!({DESIRED_REPLICAS_ANNOTATION: replicas.to_string(), MAX_REPLICAS_ANNOTATION: (replicas + surge).to_string(), REVISION_ANNOTATION: "1"})
}
