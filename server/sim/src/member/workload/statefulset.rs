//! StatefulSet controller: one pod per ordinal with its own claims, created in order or in parallel.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::selector::Selector;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetStatus};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use crate::error::Result;
use crate::member::context::MemberContext;
use crate::member::pod::PodState;
use crate::member::store::Key;

use super::pods::{self, WorkloadOwner};
use super::revision::{self, HASH_LABEL, Revisions};
use super::{
    count, enqueue_orphan_candidates, enqueue_pod_owners, new_change_queue, nonzero, replicaset, spawn_controller,
};

pub fn start(context: &Arc<MemberContext>) {
    let keys = new_change_queue(&context.stateful_sets);
    enqueue_pod_owners(context, "StatefulSet", &keys);
    enqueue_orphan_candidates(context, &context.stateful_sets, &keys);
    spawn_controller(context, "statefulset", keys, 8, |context, key| async move { reconcile(&context, &key).await });
}

/// Desired state of a StatefulSet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DesiredSet {
    /// First ordinal (`ordinals.start`).
    pub first_ordinal: i32,
    pub replicas: i32,
    /// `podManagementPolicy: Parallel`: pods do not wait for each other.
    pub is_parallel: bool,
    /// `updateStrategy: OnDelete`: pods are not deleted for an update.
    pub is_on_delete: bool,
    /// Pods with ordinals below this keep the old revision.
    pub partition: i32,
    pub min_ready_seconds: i64,
}

impl DesiredSet {
    pub fn new(spec: &StatefulSetSpec) -> Self {
        let strategy = spec.update_strategy.clone().unwrap_or_default();
        Self {
            first_ordinal: spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or_default(),
            replicas: spec.replicas.unwrap_or(1),
            is_parallel: spec.pod_management_policy.as_deref() == Some("Parallel"),
            is_on_delete: strategy.type_.as_deref() == Some("OnDelete"),
            partition: strategy.rolling_update.and_then(|rolling| rolling.partition).unwrap_or_default(),
            min_ready_seconds: i64::from(spec.min_ready_seconds.unwrap_or_default()),
        }
    }
}

/// A pod of the set.
#[derive(Debug, Clone)]
pub struct OrdinalPod {
    pub ordinal: i32,
    pub pod: Arc<PodState>,
    /// True if the pod has the update revision.
    pub is_updated: bool,
}

/// Next actions of the controller.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Ordinals to create; the boolean is true for the update revision, false for the current one.
    pub create: Vec<(i32, bool)>,
    pub delete: Vec<Arc<PodState>>,
    /// Finished pods, which are deleted to be replaced.
    pub recreate: Vec<Arc<PodState>>,
    /// Time until the next finished pod can be replaced.
    pub requeue_after: Option<Duration>,
}

/// Computes the next actions: creations from the lowest ordinal, deletions and updates from the highest.
pub fn plan(desired: &DesiredSet, members: &[OrdinalPod], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let by_ordinal: BTreeMap<i32, &OrdinalPod> = members.iter().map(|member| (member.ordinal, member)).collect();
    let is_healthy =
        |member: &OrdinalPod| member.pod.is_active() && member.pod.is_available(desired.min_ready_seconds, now);
    let desired_ordinals = desired.first_ordinal..desired.first_ordinal + desired.replicas;
    let is_not_ready = |member: &&&OrdinalPod| !(member.pod.is_ready() && member.pod.is_active());
    let first_unready = by_ordinal.values().find(is_not_ready).map(|member| member.ordinal);
    for ordinal in desired_ordinals.clone() {
        match by_ordinal.get(&ordinal) {
            // Pods below the partition are created with the old revision.
            None => plan
                .create
                .push((ordinal, desired.is_on_delete || ordinal >= desired.first_ordinal + desired.partition)),
            Some(member) if member.pod.phase.is_terminal() && member.pod.deletion.is_none() => {
                match pods::time_until_replaceable(&member.pod, now) {
                    None => plan.recreate.push(member.pod.clone()),
                    Some(wait) => {
                        plan.requeue_after =
                            Some(plan.requeue_after.map_or(wait, |requeue_after: Duration| requeue_after.min(wait)))
                    }
                }
            }
            Some(member) if is_healthy(member) => continue,
            Some(_) => {}
        }
        if !desired.is_parallel {
            return plan;
        }
    }
    for (ordinal, member) in by_ordinal.iter().rev() {
        if desired_ordinals.contains(ordinal) {
            continue;
        }
        // Unless parallel, a pod is not deleted while one with a lower ordinal is not ready.
        let is_ready = member.pod.is_ready() && member.pod.is_active();
        if !desired.is_parallel && member.pod.deletion.is_none() && !is_ready && first_unready != Some(*ordinal) {
            return plan;
        }
        if member.pod.deletion.is_none() {
            plan.delete.push(member.pod.clone());
        }
        if !desired.is_parallel {
            return plan;
        }
    }
    if desired.is_on_delete || !plan.create.is_empty() {
        return plan;
    }
    for ordinal in desired_ordinals.rev().filter(|ordinal| *ordinal >= desired.first_ordinal + desired.partition) {
        let Some(member) = by_ordinal.get(&ordinal) else { break };
        if !member.is_updated && member.pod.deletion.is_none() {
            plan.delete.push(member.pod.clone());
            break;
        }
        if !is_healthy(member) {
            break;
        }
    }
    plan
}

async fn reconcile(context: &MemberContext, key: &Key) -> Result<Option<Duration>> {
    let Some(set) = context.stateful_sets.get_undeleted(key) else { return Ok(None) };
    let spec = &set.spec;
    let owner = WorkloadOwner::new(&set, "statefulset-controller");
    let selector = Selector::from_label_selector_or_nothing(&spec.selector);
    let labels = json!(spec.selector.match_labels.clone().unwrap_or_default());
    let revisions = Revisions::find_or_create(context, &owner, &spec.template, &labels).await?;
    let update_revision = revision::name(&revisions.current).to_owned();
    let old = set.status.clone().unwrap_or_default();
    let current_revision = old
        .current_revision
        .clone()
        .filter(|name| revisions.template(name).is_some())
        .unwrap_or_else(|| update_revision.clone());

    let desired = DesiredSet::new(spec);
    let now = Timestamp::now();
    let owned = pods::claim(context, &owner, &selector, false).await?;
    let plan = plan(&desired, &ordinal_pods(&owner, &owned, &update_revision), now);
    for (ordinal, is_updated) in &plan.create {
        let name = if *is_updated { &update_revision } else { &current_revision };
        let template = revisions.template(name).unwrap_or_else(|| spec.template.clone());
        ensure_claims(context, &owner, spec, *ordinal).await?;
        let pod = new_pod(&owner, spec, &template, *ordinal, name);
        pods::create(context, &owner, vec![pod]).await?;
    }
    for pod in &plan.recreate {
        let message = format!("StatefulSet {key} is recreating failed Pod {}", pod.key.name);
        owner.record_event(context, true, "RecreatingFailedPod", message);
    }
    pods::delete(context, &owner, &plan.recreate).await?;
    pods::delete(context, &owner, &plan.delete).await?;

    let owned = context.pods.owned_by(&owner.subject.uid);
    let status = compute_status(
        &set,
        &ordinal_pods(&owner, &owned, &update_revision),
        &desired,
        &current_revision,
        &update_revision,
        now,
    );
    context.set_status(&context.stateful_sets, &set, set.status.as_ref(), &status).await?;
    let is_in_use = |name: &str| {
        [&current_revision, &update_revision].iter().any(|revision| *revision == name)
            || owned.iter().any(|pod| pod.labels.get(HASH_LABEL).is_some_and(|hash| hash == name))
    };
    revisions.delete_old(context, spec.revision_history_limit.unwrap_or(10), is_in_use).await?;
    let available = replicaset::time_until_available(&owned, spec.min_ready_seconds.unwrap_or_default(), now);
    Ok(plan.requeue_after.into_iter().chain(available).min())
}

fn ordinal_pods(owner: &WorkloadOwner, pods: &[Arc<PodState>], update_revision: &str) -> Vec<OrdinalPod> {
    let prefix = format!("{}-", owner.subject.key.name);
    let member = |pod: &Arc<PodState>| {
        let ordinal = pod.key.name.strip_prefix(&prefix)?.parse().ok()?;
        let is_updated = pod.labels.get(HASH_LABEL).is_some_and(|hash| hash == update_revision);
        Some(OrdinalPod { ordinal, pod: pod.clone(), is_updated })
    };
    pods.iter().filter_map(member).collect()
}

fn new_pod(
    owner: &WorkloadOwner,
    spec: &StatefulSetSpec,
    template: &PodTemplateSpec,
    ordinal: i32,
    revision: &str,
) -> Pod {
    let name = format!("{}-{ordinal}", owner.subject.key.name);
    let mut pod = pods::from_template(owner, template);
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(name.clone());
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(HASH_LABEL.into(), revision.into());
    labels.insert("statefulset.kubernetes.io/pod-name".into(), name.clone());
    labels.insert("apps.kubernetes.io/pod-index".into(), ordinal.to_string());
    let pod_spec = pod.spec.get_or_insert_default();
    pod_spec.hostname = Some(name);
    pod_spec.subdomain = spec.service_name.clone().filter(|name| !name.is_empty());
    let claims = spec.volume_claim_templates.as_deref().unwrap_or_default();
    if !claims.is_empty() {
        let volumes = pod_spec.volumes.get_or_insert_default();
        for claim in claims {
            let volume = claim.metadata.name.clone().unwrap_or_default();
            volumes.retain(|existing| existing.name != volume);
            volumes.push(Volume {
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: claim_name(owner, &volume, ordinal),
                    read_only: None,
                }),
                name: volume,
                ..Volume::default()
            });
        }
    }
    pod
}

fn claim_name(owner: &WorkloadOwner, template: &str, ordinal: i32) -> String {
    format!("{template}-{}-{ordinal}", owner.subject.key.name)
}

async fn ensure_claims(
    context: &MemberContext,
    owner: &WorkloadOwner,
    spec: &StatefulSetSpec,
    ordinal: i32,
) -> Result<()> {
    for template in spec.volume_claim_templates.iter().flatten() {
        let volume = template.metadata.name.clone().unwrap_or_default();
        let mut claim: PersistentVolumeClaim = template.clone();
        let name = claim_name(owner, &volume, ordinal);
        if context.claims.get(&Key::new(&owner.subject.key.namespace, &name)).is_some() {
            continue;
        }
        claim.metadata.name = Some(name);
        claim.metadata.namespace = Some(owner.subject.key.namespace.to_string());
        claim.metadata.labels.get_or_insert_default().extend(spec.selector.match_labels.clone().unwrap_or_default());
        claim.status = None;
        let retention = spec.persistent_volume_claim_retention_policy.as_ref();
        if retention.and_then(|policy| policy.when_deleted.as_deref()) == Some("Delete") {
            let reference = OwnerReference { controller: None, block_owner_deletion: None, ..owner.owner_reference() };
            claim.metadata.owner_references = Some(vec![reference]);
        }
        match context.create(&context.claims, &claim).await {
            Err(error) if !error.is_conflict() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn compute_status(
    set: &StatefulSet,
    members: &[OrdinalPod],
    desired: &DesiredSet,
    current_revision: &str,
    update_revision: &str,
    now: Timestamp,
) -> StatefulSetStatus {
    let old = set.status.clone().unwrap_or_default();
    let count_with_revision = |revision: &str| {
        count(members.iter().filter(|member| {
            member.pod.deletion.is_none() && member.pod.labels.get(HASH_LABEL).is_some_and(|hash| hash == revision)
        }))
    };
    let ready = count(members.iter().filter(|member| member.pod.is_ready()));
    let available = members.iter().filter(|member| member.pod.is_available(desired.min_ready_seconds, now));
    let replicas = count(members.iter());
    let updated = count_with_revision(update_revision);
    let is_complete = !desired.is_on_delete
        && updated == desired.replicas
        && ready == desired.replicas
        && replicas == desired.replicas;
    let current_revision = if is_complete { update_revision } else { current_revision };
    StatefulSetStatus {
        replicas,
        ready_replicas: nonzero(ready),
        available_replicas: Some(count(available)),
        current_replicas: nonzero(count_with_revision(current_revision)),
        updated_replicas: nonzero(updated),
        current_revision: Some(current_revision.to_owned()),
        update_revision: Some(update_revision.to_owned()),
        collision_count: Some(old.collision_count.unwrap_or_default()),
        observed_generation: set.metadata.generation,
        conditions: old.conditions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::interner::Interner;

    /// Pods by ordinal with flags: `0r` ready, `1` not ready, `2t` terminating, `3f` failed; `*` has the new
    /// revision.
    fn pods_from_text(text: &str) -> Vec<OrdinalPod> {
        text.split_whitespace()
            .map(|word| {
                let ordinal = word.trim_end_matches(['r', 't', 'f', '*']).parse().unwrap();
                let ready = if word.contains('r') { "True" } else { "False" };
                let pod = json!({
                    "metadata": {"name": word, "uid": word,
                        "deletionTimestamp": word.contains('t').then_some("2026-01-01T00:00:00Z")},
                    "spec": {"containers": []},
                    "status": {"phase": if word.contains('f') { "Failed" } else { "Running" }, "conditions": [
                        {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
                });
                let pod = Arc::new(Interner::default().intern_pod(serde_json::from_value(pod).unwrap()));
                OrdinalPod { ordinal, pod, is_updated: word.contains('*') }
            })
            .collect()
    }

    #[rstest::rstest]
    #[case("", 3, "", "0", "")]
    #[case("", 3, "0*", "", "")]
    #[case("", 3, "0r*", "1", "")]
    #[case("parallel", 3, "", "0 1 2", "")]
    #[case("", 3, "0r* 1t* 2r*", "", "")]
    #[case("", 3, "0r* 1f* 2r*", "", "1f*")]
    #[case("", 1, "0r* 1r* 2r*", "", "2r*")]
    #[case("", 1, "0r* 1r* 2t*", "", "")]
    #[case("parallel", 1, "0r* 1r* 2t*", "", "1r*")]
    #[case("", 3, "0r 1r 2r", "", "2r")]
    #[case("", 3, "0r 1r 2r*", "", "1r")]
    #[case("", 3, "0r 1r 2*", "", "")]
    #[case("partition", 3, "0r 1r 2r*", "", "")]
    #[case("partition", 3, "2r*", "0", "")]
    // No pod is deleted while one with a lower ordinal is not ready.
    #[case("", 0, "0 1 2", "", "")]
    #[case("", 0, "0r 1 2r", "", "2r")]
    #[case("", 0, "0r 1r 2", "", "2")]
    #[case("parallel", 0, "0 1 2", "", "2 1 0")]
    #[case("ondelete", 3, "0r 1r 2r", "", "")]
    fn pods_are_created_and_deleted_in_order(
        #[case] mode: &str,
        #[case] replicas: i32,
        #[case] pods: &str,
        #[case] create: &str,
        #[case] delete: &str,
    ) {
        let desired = DesiredSet {
            first_ordinal: 0,
            replicas,
            is_parallel: mode == "parallel",
            is_on_delete: mode == "ondelete",
            partition: if mode == "partition" { 2 } else { 0 },
            min_ready_seconds: 0,
        };
        let plan = plan(&desired, &pods_from_text(pods), Timestamp::now());
        let created: Vec<_> = plan.create.iter().map(|(ordinal, _)| ordinal.to_string()).collect();
        let deleted: Vec<_> = plan.recreate.iter().chain(&plan.delete).map(|pod| pod.key.name.to_string()).collect();
        assert_eq!((created.join(" "), deleted.join(" ")), (create.to_owned(), delete.to_owned()));
    }

    #[rstest::rstest]
    #[case(0, "", &[(0, true), (1, true), (2, true)])]
    #[case(2, "", &[(0, false), (1, false), (2, true)])]
    #[case(3, "1r", &[(0, false), (2, false)])]
    fn pods_below_the_partition_keep_their_revision(
        #[case] partition: i32,
        #[case] existing: &str,
        #[case] expected: &[(i32, bool)],
    ) {
        let desired = DesiredSet {
            first_ordinal: 0,
            replicas: 3,
            is_parallel: true,
            is_on_delete: false,
            partition,
            min_ready_seconds: 0,
        };
        assert_eq!(plan(&desired, &pods_from_text(existing), Timestamp::now()).create, expected);
    }
}
