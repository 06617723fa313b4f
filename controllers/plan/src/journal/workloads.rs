//! Journal entries of workloads: evictions, rescheduling, quotas and fences. Entries refer to the template rather
//! than the binding, because users look for the template.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{annotation, eviction};
use crowsnest_api::work::{
    GracefulEvictionTask, ObjectReference, ResourceBinding, ResourceBindingSpec, ResourceBindingStatus, ResourceHealth,
    TargetCluster,
};
use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_apimachinery::unstructured;
use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::clusters::{evicting_taint, format_taint, not_ready_reason, readiness_id, taint_id};
use super::{Action, Cause, Entry, id, unix_seconds};
use crate::quota::ExceededQuota;
use crate::scheduling::Trigger;

/// The clusters involved in a change, by name.
pub type Clusters = BTreeMap<String, Arc<Cluster>>;

/// A change of a binding, about which journal entries are written.
#[derive(Debug, Clone)]
pub struct BindingChange<'a> {
    /// UID of the binding, not of the template.
    pub uid: &'a str,
    /// Generation after the change.
    pub generation: i64,
    pub template: &'a ObjectReference,
    /// The policy that the binding follows.
    pub policy: Option<ObjectReference>,
    pub at: Timestamp,
}

impl<'a> BindingChange<'a> {
    pub fn from_binding(binding: &'a Value, spec: &'a ResourceBindingSpec, at: Timestamp) -> Self {
        let annotation_of = |key: &str| unstructured::annotation(binding, key).unwrap_or_default();
        let group = "policy.karmada.io/v1alpha1";
        let policy = match (
            annotation_of(annotation::PROPAGATION_POLICY_NAME),
            annotation_of(annotation::CLUSTER_PROPAGATION_POLICY_NAME),
        ) {
            ("", "") => None,
            ("", name) => Some(ObjectReference::new(group, "ClusterPropagationPolicy", "", name)),
            (name, _) => {
                let namespace = annotation_of(annotation::PROPAGATION_POLICY_NAMESPACE);
                Some(ObjectReference::new(group, "PropagationPolicy", namespace, name))
            }
        };
        let (uid, generation) = (unstructured::uid(binding), unstructured::generation(binding));
        BindingChange { uid, generation, template: &spec.resource, policy, at }
    }

    fn id(&self, action: Action, parts: &[&str]) -> String {
        id(&self.template.without_resource_version(), self.uid, action, parts)
    }

    /// Id of the entry for the start of an eviction.
    fn eviction_id(&self, task: &GracefulEvictionTask) -> Option<String> {
        let created = unix_seconds(task.creation_timestamp.as_ref()?.0);
        Some(self.id(Action::Evicted, &[&task.from_cluster, &created]))
    }

    fn now(&self) -> String {
        unix_seconds(self.at)
    }

    fn entry(&self, action: Action, cluster: &str, id: String, cause: Cause, effect: Value, message: String) -> Entry {
        Entry {
            at: self.at,
            subject: self.template.without_resource_version(),
            action,
            cluster: cluster.to_owned(),
            cause,
            effect,
            generation: Some(self.generation),
            is_warning: false,
            message,
            id,
        }
    }
}

/// Formats a target as `m1:2`, or `m1` without replicas.
fn format_target(target: &TargetCluster) -> String {
    match target.replicas {
        0 => target.name.clone(),
        replicas => format!("{}:{replicas}", target.name),
    }
}

fn format_targets(targets: &[TargetCluster]) -> String {
    match targets {
        [] => "no cluster".to_owned(),
        targets => targets.iter().map(format_target).collect::<Vec<_>>().join(", "),
    }
}

fn targets_json(targets: &[TargetCluster]) -> Value {
    let share = |target: &TargetCluster| match target.replicas {
        0 => json!({"cluster": target.name}),
        replicas => json!({"cluster": target.name, "replicas": replicas}),
    };
    targets.iter().map(share).collect()
}

/// Entries for evictions that started between two specs of a binding.
pub fn eviction_entries(
    change: &BindingChange<'_>,
    (before, after): (&ResourceBindingSpec, &ResourceBindingSpec),
    clusters: &Clusters,
    tolerations: &[Toleration],
) -> Vec<Entry> {
    let cause = |task: &GracefulEvictionTask| eviction_cause(task, clusters.get(&task.from_cluster), tolerations);
    started_eviction_entries(change, (before, after), cause)
}

fn started_eviction_entries(
    change: &BindingChange<'_>,
    (before, after): (&ResourceBindingSpec, &ResourceBindingSpec),
    cause: impl Fn(&GracefulEvictionTask) -> Cause,
) -> Vec<Entry> {
    let new = after.graceful_eviction_tasks.iter().filter(|task| !before.evicts(&task.from_cluster));
    let entry_of = |task: &GracefulEvictionTask| {
        let (cluster, cause) = (&task.from_cluster, cause(task));
        let now = || change.id(Action::Evicted, &[cluster, &change.now()]);
        let id = change.eviction_id(task).unwrap_or_else(now);
        let mut effect = json!({"from": cluster, "left": targets_json(&after.clusters)});
        if let Some(replicas) = task.replicas {
            effect["replicas"] = json!(replicas);
        }
        if let Some(mode) = &task.purge_mode {
            effect["purgeMode"] = json!(mode);
        }
        let message = format!("Evicted from {cluster}: {}", cause.text);
        Entry { is_warning: true, ..change.entry(Action::Evicted, cluster, id, cause, effect, message) }
    };
    new.map(entry_of).collect()
}

fn eviction_cause(task: &GracefulEvictionTask, cluster: Option<&Arc<Cluster>>, tolerations: &[Toleration]) -> Cause {
    let cluster_reference = cluster
        .map_or_else(|| ObjectReference::cluster(&task.from_cluster), |cluster| ObjectReference::from_cluster(cluster));
    let is_tainted = task.producer == eviction::PRODUCER_TAINT_MANAGER;
    let Some((cluster, taint)) =
        cluster.filter(|_| is_tainted).and_then(|cluster| Some((cluster, evicting_taint(cluster, tolerations)?)))
    else {
        let text = match task.reason.as_str() {
            eviction::REASON_APPLICATION_FAILURE => "it is unhealthy there for longer than its policy tolerates",
            other => other,
        };
        return Cause::new(text).caused_by(cluster_reference);
    };
    let reason = not_ready_reason(cluster).map(|reason| format!("; {reason}")).unwrap_or_default();
    Cause::new(format!("its taint {} is not tolerated{reason}", format_taint(taint)))
        .caused_by(cluster_reference)
        .preceded_by(taint_id(cluster, taint))
}

/// Entries for evictions that existed before: kept beyond their timeout, completed, or cancelled. `cancelled` are the
/// clusters whose evictions were cancelled.
pub fn ongoing_eviction_entries(
    change: &BindingChange<'_>,
    (before, after): (&ResourceBindingSpec, &ResourceBindingSpec),
    status: &ResourceBindingStatus,
    cancelled: &[String],
    clusters: &Clusters,
) -> Vec<Entry> {
    let entry_of = |task: &GracefulEvictionTask| {
        let cluster = &task.from_cluster;
        let current_task =
            after.graceful_eviction_tasks.iter().find(|current_task| current_task.from_cluster == *cluster);
        let (cluster_reference, eviction_id) = (ObjectReference::cluster(cluster), change.eviction_id(task));
        let id = |action: Action, message: &str| change.id(action, &[cluster, message, &change.now()]);
        match current_task {
            Some(current_task) if current_task.message != task.message && !current_task.message.is_empty() => {
                let reason = current_task.message.trim_end_matches('.');
                let (action, cause) =
                    (Action::EvictionKept, Cause::new(reason).caused_by(cluster_reference).preceded_by(eviction_id));
                let message = format!("Evict from cluster {cluster} waits: {reason}.");
                let entry = change.entry(action, cluster, id(action, reason), cause, json!({"from": cluster}), message);
                Some(Entry { is_warning: true, ..entry })
            }
            Some(_) => None,
            None if cancelled.contains(cluster) => {
                let readiness_change = clusters.get(cluster).and_then(|cluster| readiness_id(cluster));
                let cause = Cause::new("no taint evicts it any longer, and the copy has not been replaced");
                let message = format!("Evict from cluster {cluster} is cancelled: the copy has not been replaced.");
                let effect = json!({"back": cluster, "to": targets_json(&after.clusters)});
                let action = Action::EvictionCancelled;
                Some(change.entry(
                    action,
                    cluster,
                    id(action, ""),
                    cause.caused_by(cluster_reference).preceded_by(readiness_change.or(eviction_id)),
                    effect,
                    message,
                ))
            }
            None => {
                let cause = Cause::new(end_reason(task, after, status, clusters))
                    .caused_by(cluster_reference)
                    .preceded_by(eviction_id);
                let message = format!("Evict from cluster {cluster} has ended: {}", cause.text);
                let action = Action::EvictionEnded;
                Some(change.entry(action, cluster, id(action, ""), cause, json!({"from": cluster}), message))
            }
        }
    };
    before.graceful_eviction_tasks.iter().filter_map(entry_of).collect()
}

/// Reason why a task that is neither cancelled nor kept has ended.
fn end_reason(
    task: &GracefulEvictionTask,
    after: &ResourceBindingSpec,
    status: &ResourceBindingStatus,
    clusters: &Clusters,
) -> String {
    let is_healthy = |target: &TargetCluster| {
        let item = status.aggregated_status.iter().find(|item| item.cluster_name == target.name);
        item.is_some_and(|item| item.health == Some(ResourceHealth::Healthy))
    };
    if task.suppress_deletion == Some(false) {
        "its deletion was confirmed".to_owned()
    } else if !clusters.contains_key(&task.from_cluster) {
        "the cluster no longer exists".to_owned()
    } else if !after.clusters.is_empty() && after.clusters.iter().all(is_healthy) {
        format!("it is healthy in {}", format_targets(&after.clusters))
    } else {
        "its grace period expired".to_owned()
    }
}

/// A scheduling decision that was written.
#[derive(Debug, Clone, Copy)]
pub struct Rescheduling<'a> {
    pub before: &'a ResourceBindingSpec,
    pub status: &'a ResourceBindingStatus,
    pub to: &'a [TargetCluster],
    pub trigger: Option<Trigger>,
    /// Scheduling failure, if no cluster fits.
    pub no_fit: Option<&'a str>,
    /// Id of the entry that caused the rescheduling.
    pub requested_by: Option<&'a str>,
}

/// Entry for a workload that moved between clusters. `None` for the first scheduling, and if only replicas changed.
pub fn rescheduling_entry(change: &BindingChange<'_>, rescheduling: &Rescheduling<'_>) -> Option<Entry> {
    let recent_evictions = recent_evictions(rescheduling);
    let mut from = rescheduling.before.clusters.clone();
    let share = |task: &GracefulEvictionTask| TargetCluster {
        name: task.from_cluster.clone(),
        replicas: task.replicas.unwrap_or_default(),
        components: Vec::new(),
    };
    from.extend(
        recent_evictions.iter().copied().filter(|task| !rescheduling.before.targets(&task.from_cluster)).map(share),
    );
    if !is_moved(&from, rescheduling.to) {
        return None;
    }
    let cause = rescheduling_cause(change, rescheduling, &recent_evictions);
    let (origin, to) = (format_targets(&from), format_targets(rescheduling.to));
    let message = match rescheduling.no_fit {
        Some(no_fit) => format!("Rescheduled from {origin} to no cluster: {no_fit} ({})", cause.text),
        None => format!("Rescheduled from {origin} to {to}: {}", cause.text),
    };
    let mut effect = json!({"from": targets_json(&from), "to": targets_json(rescheduling.to)});
    if let Some(trigger) = rescheduling.trigger {
        effect["trigger"] = json!(trigger);
    }
    let cluster = match rescheduling.to {
        [target] => target.name.as_str(),
        _ => "",
    };
    let id = change.id(Action::Rescheduled, &[&change.generation.to_string()]);
    let entry = change.entry(Action::Rescheduled, cluster, id, cause, effect, message);
    Some(Entry { is_warning: rescheduling.to.is_empty(), ..entry })
}

/// Evictions since the last scheduling.
fn recent_evictions<'a>(rescheduling: &Rescheduling<'a>) -> Vec<&'a GracefulEvictionTask> {
    let last = rescheduling.status.last_scheduled_time.as_ref().map(|time| time.0);
    let is_new = |task: &&GracefulEvictionTask| {
        let created = task.creation_timestamp.as_ref().map(|time| time.0);
        task.producer != eviction::PRODUCER_FAILBACK && created.is_some_and(|at| last.is_none_or(|last| at >= last))
    };
    rescheduling.before.graceful_eviction_tasks.iter().filter(is_new).collect()
}

/// True if the set of clusters changed, or replicas moved from one cluster to another.
fn is_moved(from: &[TargetCluster], to: &[TargetCluster]) -> bool {
    let had = |target: &TargetCluster| from.iter().find(|before| before.name == target.name);
    let has = |target: &TargetCluster| to.iter().find(|after| after.name == target.name);
    let grew = to.iter().any(|target| had(target).is_none_or(|had| had.replicas < target.replicas));
    let shrank = from.iter().any(|target| has(target).is_none_or(|has| has.replicas < target.replicas));
    let same_names = from.len() == to.len() && from.iter().all(|target| has(target).is_some());
    !from.is_empty() && (!same_names || (grew && shrank))
}

fn rescheduling_cause(
    change: &BindingChange<'_>,
    rescheduling: &Rescheduling<'_>,
    recent_evictions: &[&GracefulEvictionTask],
) -> Cause {
    let is_requested = matches!(rescheduling.trigger, Some(Trigger::PlacementChanged | Trigger::RescheduleRequested));
    let newest = recent_evictions.iter().max_by_key(|task| task.creation_timestamp.as_ref().map(|time| time.0));
    if let Some(task) = newest.filter(|_| !is_requested) {
        let text = format!("it was evicted from {} ({})", task.from_cluster, task.reason);
        return Cause::new(text)
            .caused_by(ObjectReference::cluster(&task.from_cluster))
            .preceded_by(change.eviction_id(task));
    }
    let cause = match rescheduling.trigger {
        Some(Trigger::PlacementChanged) => {
            Cause { reference: change.policy.clone(), ..Cause::new("its placement changed") }
        }
        Some(Trigger::ReplicasChanged) if rescheduling.requested_by.is_some() => Cause::new("it was descheduled"),
        Some(Trigger::ReplicasChanged) => {
            let assigned: i64 = rescheduling.before.clusters.iter().map(|target| i64::from(target.replicas)).sum();
            Cause::new(format!("{} replicas are requested, {assigned} were assigned", rescheduling.before.replicas))
        }
        Some(Trigger::RescheduleRequested) => Cause::new("rescheduling was requested"),
        Some(Trigger::TargetTerminating) => {
            let leaves = |target: &&TargetCluster| !rescheduling.to.iter().any(|stays| stays.name == target.name);
            match rescheduling.before.clusters.iter().find(leaves) {
                Some(removed) => Cause::new(format!("{} is being removed", removed.name))
                    .caused_by(ObjectReference::cluster(&removed.name)),
                None => Cause::new("a cluster is being removed"),
            }
        }
        Some(Trigger::Reconcile) | None => Cause::new("the fitting clusters changed"),
    };
    cause.preceded_by(rescheduling.requested_by.map(str::to_owned))
}

/// Entry for replicas that were descheduled as unschedulable.
pub fn descheduling_entry(
    change: &BindingChange<'_>,
    before: &[TargetCluster],
    after: &[TargetCluster],
    message: &str,
) -> Entry {
    let removed_replicas = |target: &TargetCluster| {
        let stays = after.iter().find(|stays| stays.name == target.name).map_or(0, |stays| stays.replicas);
        let removed = target.replicas.saturating_sub(stays);
        (removed > 0).then(|| TargetCluster { replicas: removed, ..target.clone() })
    };
    let removed: Vec<TargetCluster> = before.iter().filter_map(removed_replicas).collect();
    let cause = Cause::new("no node there can run these replicas");
    let (cluster, cause) = match removed.as_slice() {
        [target] => (target.name.clone(), cause.caused_by(ObjectReference::cluster(&target.name))),
        _ => (String::new(), cause),
    };
    let id = change.id(Action::Descheduled, &[&change.generation.to_string()]);
    let effect = json!({"taken": targets_json(&removed)});
    change.entry(Action::Descheduled, &cluster, id, cause, effect, message.to_owned())
}

/// Entries for a failback, and for the evictions of the replacements.
pub fn failback_entries(
    change: &BindingChange<'_>,
    (before, after): (&ResourceBindingSpec, &ResourceBindingSpec),
    to: &[TargetCluster],
    clusters: &Clusters,
    message: &str,
) -> Vec<Entry> {
    let originals = to.iter().filter_map(|target| clusters.get(&target.name));
    let newest = originals.max_by_key(|cluster| {
        let ready = crate::conditions::find(&cluster.status.conditions, "Ready");
        ready.map(|ready| ready.last_transition_time.0)
    });
    let cause = Cause::new("its original clusters have been healthy for long enough");
    let cause = match newest {
        Some(cluster) => cause.caused_by(ObjectReference::from_cluster(cluster)).preceded_by(readiness_id(cluster)),
        None => cause,
    };
    let id = change.id(Action::FailedBack, &[&change.generation.to_string()]);
    let effect = json!({"from": targets_json(&before.clusters), "to": targets_json(to)});
    let failback_cause = |_: &GracefulEvictionTask| {
        Cause::new("it fails back to its original clusters")
            .caused_by(change.template.without_resource_version())
            .preceded_by(Some(id.clone()))
    };
    let eviction_entries = started_eviction_entries(change, (before, after), failback_cause)
        .into_iter()
        .map(|entry| Entry { is_warning: false, ..entry });
    let eviction_entries: Vec<Entry> = eviction_entries.collect();
    let failback_entry = change.entry(Action::FailedBack, "", id, cause, effect, message.to_owned());
    [failback_entry].into_iter().chain(eviction_entries).collect()
}

/// Entry for a workload that has been unhealthy for longer than tolerated and is not evicted, because no other cluster
/// runs it.
pub fn kept_unhealthy_entry(change: &BindingChange<'_>, clusters: &[String], reason: &str, message: &str) -> Entry {
    let all = clusters.join(", ");
    // An unchanged situation has the same id, so it is recorded once.
    let id = change.id(Action::EvictionKept, &[&all, reason, &change.generation.to_string()]);
    let cause = Cause::new(reason);
    let (cluster, cause) = match clusters {
        [cluster] => (cluster.as_str(), cause.caused_by(ObjectReference::cluster(cluster))),
        _ => ("", cause),
    };
    let entry = change.entry(Action::EvictionKept, cluster, id, cause, json!({"from": clusters}), message.to_owned());
    Entry { is_warning: true, ..entry }
}

/// Entry for an exclusive workload that must not start, because its copies in these clusters were not confirmed to
/// have stopped.
pub fn fence_wait_entry(change: &BindingChange<'_>, clusters: &[&str], message: &str) -> Entry {
    let id = change.id(Action::WaitingForFence, &[&clusters.join(","), &change.now()]);
    let names = clusters.join(", ");
    let text = format!("the copy in {names} was not confirmed to have stopped before the cluster was removed");
    let (cluster, cause) = match clusters {
        [cluster] => (*cluster, Cause::new(text).caused_by(ObjectReference::cluster(cluster))),
        _ => ("", Cause::new(text)),
    };
    let effect = json!({"unconfirmed": clusters});
    let entry = change.entry(Action::WaitingForFence, cluster, id, cause, effect, message.to_owned());
    Entry { is_warning: true, ..entry }
}

/// Entry for a scheduling result that exceeds a quota. Repeated rejections without a change have the same entry.
pub fn quota_denied_entry(
    binding: &ResourceBinding,
    rejected_targets: &[TargetCluster],
    exceeded: &ExceededQuota,
    at: Timestamp,
) -> Entry {
    let metadata = &binding.metadata;
    let change = BindingChange {
        uid: metadata.uid.as_deref().or(metadata.name.as_deref()).unwrap_or_default(),
        generation: metadata.generation.unwrap_or_default(),
        template: &binding.spec.resource,
        policy: None,
        at,
    };
    let ExceededQuota { quota, resource, requested, limit } = exceeded;
    let numbers = [requested, limit].map(Quantity::to_string);
    let generation = change.generation.to_string();
    let parts = [&quota.namespace, &quota.name, &quota.uid, resource, &numbers[0], &numbers[1], &generation];
    let id = change.id(Action::QuotaDenied, &parts.map(String::as_str));
    let effect = json!({
        "resource": resource, "requested": base_value(requested), "limit": base_value(limit),
        "wanted": targets_json(rejected_targets),
    });
    let message = exceeded.to_string();
    let cause = Cause::new(&message).caused_by(quota.clone());
    let entry = change.entry(Action::QuotaDenied, "", id, cause, effect, message);
    Entry { is_warning: true, generation: metadata.generation, ..entry }
}

/// Value in the base unit of the resource: CPUs, bytes, or a count.
fn base_value(quantity: &Quantity) -> Value {
    let number = quantity.as_f64();
    if number.fract() == 0.0 { json!(quantity.value()) } else { json!(number) }
}

#[cfg(test)]
mod tests;
