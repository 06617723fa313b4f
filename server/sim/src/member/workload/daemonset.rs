//! DaemonSet controller: one pod on each eligible node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::selector::Selector;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, PodTemplateSpec,
    Toleration,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

use crate::error::Result;
use crate::member::context::MemberContext;
use crate::member::pod::{Phase, PodSpecView, PodState};
use crate::member::scheduler::fit::{NodeView, check_static_filters};
use crate::member::store::Key;

use super::pods::{self, WorkloadOwner};
use super::revision::{HASH_LABEL, Revisions};
use super::rollout::resolve_int_or_percent;
use super::{
    count, enqueue_orphan_candidates, enqueue_pod_owners, new_change_queue, nonzero, replicaset, spawn_controller,
};

pub fn start(context: &Arc<MemberContext>) {
    let keys = new_change_queue(&context.daemon_sets);
    enqueue_pod_owners(context, "DaemonSet", &keys);
    enqueue_orphan_candidates(context, &context.daemon_sets, &keys);
    let (queue, sets) = (keys.clone(), Arc::downgrade(&context.daemon_sets));
    context.nodes.on_change(move |old, new| {
        let is_unchanged =
            old.zip(new).is_some_and(|(old, new)| old.spec == new.spec && old.metadata.labels == new.metadata.labels);
        if let (false, Some(sets)) = (is_unchanged, sets.upgrade()) {
            for set in sets.all() {
                queue.add(crate::member::store::StoreObject::key(&*set));
            }
        }
    });
    spawn_controller(context, "daemonset", keys, 4, |context, key| async move { reconcile(&context, &key).await });
}

/// A pod of the DaemonSet and its node.
#[derive(Debug, Clone)]
pub struct DaemonPod {
    pub node: Arc<str>,
    pub pod: Arc<PodState>,
    /// True if the pod has the current template.
    pub is_updated: bool,
}

/// Next actions of the controller.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Nodes on which a pod is created.
    pub create: Vec<Arc<str>>,
    pub delete: Vec<Arc<PodState>>,
    /// Finished pods and their nodes; they are deleted, and then replaced.
    pub finished: Vec<(Arc<str>, Arc<PodState>)>,
    /// Time until the next finished pod can be replaced.
    pub requeue_after: Option<Duration>,
}

/// Computes the next actions. During updates, at most `max_unavailable` nodes have no available pod; `None` disables
/// updates.
pub fn plan(
    eligible: &[Arc<str>],
    daemons: &[DaemonPod],
    max_unavailable: Option<i32>,
    min_ready_seconds: i64,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    let mut by_node: BTreeMap<&Arc<str>, Vec<&DaemonPod>> = BTreeMap::new();
    for daemon in daemons {
        by_node.entry(&daemon.node).or_default().push(daemon);
    }
    let mut unavailable_nodes = 0;
    let mut outdated = Vec::new();
    for node in eligible {
        let mut on_node = by_node.remove(node).unwrap_or_default();
        // The oldest pod is kept; finished ones are replaced.
        on_node.sort_by_key(|daemon| (daemon.pod.created, daemon.pod.key.clone()));
        let (finished, running): (Vec<_>, Vec<_>) =
            on_node.into_iter().partition(|daemon| daemon.pod.phase.is_terminal());
        for daemon in finished.iter().filter(|daemon| daemon.pod.deletion.is_none()) {
            match pods::time_until_replaceable(&daemon.pod, now) {
                None => plan.finished.push((node.clone(), daemon.pod.clone())),
                Some(wait) => {
                    plan.requeue_after =
                        Some(plan.requeue_after.map_or(wait, |requeue_after: Duration| requeue_after.min(wait)))
                }
            }
        }
        plan.delete.extend(
            running.iter().skip(1).filter(|daemon| daemon.pod.deletion.is_none()).map(|daemon| daemon.pod.clone()),
        );
        match running.first() {
            None if finished.is_empty() => plan.create.push(node.clone()),
            None => {}
            Some(daemon) => {
                let available = daemon.pod.is_active() && daemon.pod.is_available(min_ready_seconds, now);
                if !available {
                    unavailable_nodes += 1;
                }
                if !daemon.is_updated && daemon.pod.deletion.is_none() {
                    outdated.push((available, daemon.pod.clone()));
                }
            }
        }
    }
    let misplaced = by_node.into_values().flatten().filter(|daemon| daemon.pod.deletion.is_none());
    plan.delete.extend(misplaced.map(|daemon| daemon.pod.clone()));
    if let Some(max_unavailable) = max_unavailable {
        unavailable_nodes += count(&plan.create);
        // Unavailable pods are replaced at once.
        for (available, pod) in outdated {
            if !available {
                plan.delete.push(pod);
            } else if unavailable_nodes < max_unavailable {
                unavailable_nodes += 1;
                plan.delete.push(pod);
            }
        }
    }
    plan
}

async fn reconcile(context: &MemberContext, key: &Key) -> Result<Option<Duration>> {
    let Some(set) = context.daemon_sets.get_undeleted(key) else { return Ok(None) };
    let spec = &set.spec;
    let owner = WorkloadOwner::new(&set, "daemonset-controller");
    let labels = json!(spec.selector.match_labels.clone().unwrap_or_default());
    let revisions = Revisions::find_or_create(context, &owner, &spec.template, &labels).await?;
    let hash = revisions
        .current
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(HASH_LABEL).cloned())
        .unwrap_or_default();
    let eligible = find_eligible_nodes(context, &owner, &spec.template);
    let owned_pods =
        pods::claim(context, &owner, &Selector::from_label_selector_or_nothing(&spec.selector), false).await?;
    let min_ready_seconds = i64::from(spec.min_ready_seconds.unwrap_or_default());
    let now = Timestamp::now();
    let plan = plan(
        &eligible,
        &to_daemon_pods(&owned_pods, &hash),
        max_unavailable(spec, eligible.len()),
        min_ready_seconds,
        now,
    );
    let new = plan.create.iter().map(|node| new_pod(&owner, &spec.template, node, &hash)).collect::<Vec<_>>();
    if !new.is_empty() {
        pods::create(context, &owner, new).await?;
    }
    for (node, pod) in &plan.finished {
        let (has_failed, key) = (pod.phase == Phase::Failed, &pod.key);
        let (reason, message) = if has_failed {
            ("FailedDaemonPod", format!("Found failed daemon pod {key} on node {node}, will try to kill it"))
        } else {
            ("SucceededDaemonPod", format!("Found succeeded daemon pod {key} on node {node}, will try to delete it"))
        };
        owner.record_event(context, has_failed, reason, message);
    }
    let finished: Vec<_> = plan.finished.iter().map(|(_, pod)| pod.clone()).collect();
    pods::delete(context, &owner, &finished).await?;
    pods::delete(context, &owner, &plan.delete).await?;
    let owned_pods = context.pods.owned_by(&owner.subject.uid);
    let status = compute_status(&set, &eligible, &to_daemon_pods(&owned_pods, &hash), min_ready_seconds, now);
    context.set_status(&context.daemon_sets, &set, set.status.as_ref(), &status).await?;
    let is_in_use = |name: &str| {
        let suffix = name.rsplit('-').next().unwrap_or_default();
        suffix == hash || owned_pods.iter().any(|pod| pod.labels.get(HASH_LABEL).is_some_and(|label| label == suffix))
    };
    revisions.delete_old(context, spec.revision_history_limit.unwrap_or(10), is_in_use).await?;
    let available = replicaset::time_until_available(&owned_pods, spec.min_ready_seconds.unwrap_or_default(), now);
    Ok(plan.requeue_after.into_iter().chain(available).min())
}

/// Maximum number of nodes without an available pod during an update; `None` for the strategy OnDelete.
fn max_unavailable(spec: &DaemonSetSpec, nodes: usize) -> Option<i32> {
    let strategy = spec.update_strategy.clone().unwrap_or_default();
    if strategy.type_.as_deref() == Some("OnDelete") {
        return None;
    }
    let max_unavailable =
        strategy.rolling_update.and_then(|rolling| rolling.max_unavailable).unwrap_or(IntOrString::Int(1));
    Some(resolve_int_or_percent(&max_unavailable, count(0..nodes), true).max(1))
}

/// Nodes on which a pod of the template can run.
fn find_eligible_nodes(context: &MemberContext, owner: &WorkloadOwner, template: &PodTemplateSpec) -> Vec<Arc<str>> {
    let spec: Arc<PodSpecView> = context.interner.intern_pod(new_pod(owner, template, "", "")).spec;
    // Replaces the affinity to a single node, which `new_pod` adds, by that of the template.
    let mut spec = PodSpecView::clone(&spec);
    spec.affinity = template.spec.as_ref().and_then(|spec| spec.affinity.clone()).map(Box::new);
    let mut names: Vec<_> = context
        .nodes
        .all()
        .iter()
        .map(|node| NodeView::new(node))
        .filter(|node| check_static_filters(&spec, node).is_ok())
        .map(|node| node.name)
        .collect();
    names.sort();
    names
}

fn to_daemon_pods(pods: &[Arc<PodState>], hash: &str) -> Vec<DaemonPod> {
    let daemon = |pod: &Arc<PodState>| {
        let node = pod.node.clone().or_else(|| target_node(&pod.spec))?;
        let is_updated = pod.labels.get(HASH_LABEL).is_some_and(|label| label == hash);
        Some(DaemonPod { node, pod: pod.clone(), is_updated })
    };
    pods.iter().filter_map(daemon).collect()
}

/// The node in a daemon pod's affinity.
fn target_node(spec: &PodSpecView) -> Option<Arc<str>> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let fields = required.node_selector_terms.first()?.match_fields.as_ref()?;
    let name = fields.iter().find(|field| field.key == "metadata.name")?.values.as_ref()?.first()?;
    Some(name.as_str().into())
}

fn new_pod(owner: &WorkloadOwner, template: &PodTemplateSpec, node: &str, hash: &str) -> Pod {
    let mut pod = pods::from_template(owner, template);
    pod.metadata.labels.get_or_insert_default().insert(HASH_LABEL.into(), hash.into());
    let spec = pod.spec.get_or_insert_default();
    restrict_to_node(spec, node);
    let host_network = spec.host_network.unwrap_or_default();
    let tolerations = spec.tolerations.get_or_insert_default();
    let mut tolerate = |key: &str, effect: &str| {
        tolerations.push(Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            effect: Some(effect.into()),
            ..Toleration::default()
        });
    };
    tolerate("node.kubernetes.io/not-ready", "NoExecute");
    tolerate("node.kubernetes.io/unreachable", "NoExecute");
    for pressure in ["disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"] {
        tolerate(&format!("node.kubernetes.io/{pressure}"), "NoSchedule");
    }
    if host_network {
        tolerate("node.kubernetes.io/network-unavailable", "NoSchedule");
    }
    pod
}

/// Restricts the required node affinity of a pod to a node by name, in every term.
fn restrict_to_node(spec: &mut PodSpec, node: &str) {
    let field = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
    let affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    let required =
        affinity.required_during_scheduling_ignored_during_execution.get_or_insert_with(NodeSelector::default);
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_fields = Some(vec![field.clone()]);
    }
}

fn compute_status(
    set: &DaemonSet,
    eligible: &[Arc<str>],
    daemons: &[DaemonPod],
    min_ready_seconds: i64,
    now: Timestamp,
) -> DaemonSetStatus {
    let old = set.status.clone().unwrap_or_default();
    let placed: Vec<&DaemonPod> = eligible
        .iter()
        .filter_map(|node| {
            let on_node = daemons.iter().filter(|daemon| daemon.node == *node && !daemon.pod.phase.is_terminal());
            on_node.min_by_key(|daemon| (daemon.pod.deletion.is_some(), daemon.pod.created))
        })
        .collect();
    let desired = count(eligible);
    let available = count(placed.iter().filter(|daemon| daemon.pod.is_available(min_ready_seconds, now)));
    let misplaced = daemons.iter().filter(|daemon| !eligible.contains(&daemon.node) && daemon.pod.is_active());
    DaemonSetStatus {
        desired_number_scheduled: desired,
        current_number_scheduled: count(&placed),
        number_ready: count(placed.iter().filter(|daemon| daemon.pod.is_ready())),
        number_available: nonzero(available),
        number_unavailable: nonzero(desired - available),
        number_misscheduled: count(misplaced),
        updated_number_scheduled: nonzero(count(placed.iter().filter(|daemon| daemon.is_updated))),
        observed_generation: set.metadata.generation,
        collision_count: old.collision_count,
        conditions: old.conditions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::interner::Interner;

    /// Pods by node with flags: `a:r` ready on a, `b:` not ready, `*` has the new template, `f` failed.
    fn daemon_pods(text: &str) -> Vec<DaemonPod> {
        text.split_whitespace()
            .map(|word| {
                let (node, flags) = word.split_once(':').unwrap();
                let ready = if flags.contains('r') { "True" } else { "False" };
                let pod = json!({"metadata": {"name": word, "uid": word}, "spec": {"nodeName": node, "containers": []},
                    "status": {"phase": if flags.contains('f') { "Failed" } else { "Running" }, "conditions": [
                        {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
                let pod = Arc::new(Interner::default().intern_pod(serde_json::from_value(pod).unwrap()));
                DaemonPod { node: node.into(), pod, is_updated: flags.contains('*') }
            })
            .collect()
    }

    #[rstest::rstest]
    #[case("a b c", "a:r*", Some(1), "b c", "")]
    #[case("a b", "a:r* b:r* c:r*", Some(1), "", "c:r*")]
    #[case("a b", "a:r b:r", Some(1), "", "a:r")]
    #[case("a b c", "a:* b:r c:r", Some(1), "", "")]
    #[case("a b c", "a: b:r c:r", Some(1), "", "a:")]
    #[case("a b", "a:r b:r", None, "", "")]
    #[case("a", "a:f*", Some(1), "", "a:f*")]
    fn one_pod_per_eligible_node_is_kept_and_updates_are_limited(
        #[case] nodes: &str,
        #[case] pods: &str,
        #[case] max_unavailable: Option<i32>,
        #[case] create: &str,
        #[case] delete: &str,
    ) {
        let eligible: Vec<Arc<str>> = nodes.split_whitespace().map(Into::into).collect();
        let plan = plan(&eligible, &daemon_pods(pods), max_unavailable, 0, Timestamp::now());
        let finished = plan.finished.iter().map(|(_, pod)| pod);
        let deleted: Vec<_> = finished.chain(&plan.delete).map(|pod| pod.key.name.to_string()).collect();
        assert_eq!((plan.create.join(" "), deleted.join(" ")), (create.to_owned(), delete.to_owned()));
    }
}
