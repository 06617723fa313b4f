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
use crate::member::pod::{Phase, PodState, SpecView};
use crate::member::scheduler::fit::{NodeView, placeable};
use crate::member::store::Key;
use crate::member::world::World;

use super::pods::{self, Parent};
use super::revision::{HASH_LABEL, Revisions};
use super::rollout::resolve;
use super::{count, follow_orphans, follow_pods, keys_of, nonzero, replicaset, spawn};

pub fn start(world: &Arc<World>) {
    let keys = keys_of(&world.daemon_sets);
    follow_pods(world, "DaemonSet", &keys);
    follow_orphans(world, &world.daemon_sets, &keys);
    let (queue, sets) = (keys.clone(), Arc::downgrade(&world.daemon_sets));
    world.nodes.on_change(move |old, new| {
        let same =
            old.zip(new).is_some_and(|(old, new)| old.spec == new.spec && old.metadata.labels == new.metadata.labels);
        if let (false, Some(sets)) = (same, sets.upgrade()) {
            for set in sets.all() {
                queue.add(crate::member::store::Stored::key(&*set));
            }
        }
    });
    spawn(world, "daemonset", keys, 4, |world, key| async move { reconcile(&world, &key).await });
}

/// A pod of the DaemonSet and its node.
#[derive(Debug, Clone)]
pub struct Daemon {
    pub node: Arc<str>,
    pub pod: Arc<PodState>,
    pub updated: bool,
}

/// Next actions: nodes that need a pod, pods to delete.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub create: Vec<Arc<str>>,
    pub delete: Vec<Arc<PodState>>,
    /// Finished pods by node, which are deleted to be replaced.
    pub finished: Vec<(Arc<str>, Arc<PodState>)>,
    /// Time until the next finished pod can be replaced.
    pub requeue_after: Option<Duration>,
}

/// Computes the next actions. During updates, `unavailable` nodes may be without an available pod; `None` disables
/// updates.
pub fn plan(
    eligible: &[Arc<str>],
    daemons: &[Daemon],
    unavailable: Option<i32>,
    min_ready: i64,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    let mut by_node: BTreeMap<&Arc<str>, Vec<&Daemon>> = BTreeMap::new();
    for daemon in daemons {
        by_node.entry(&daemon.node).or_default().push(daemon);
    }
    let mut unavailable_nodes = 0;
    let mut outdated = Vec::new();
    for node in eligible {
        let mut on_node = by_node.remove(node).unwrap_or_default();
        // The oldest pod is kept; finished ones are replaced.
        on_node.sort_by_key(|daemon| (daemon.pod.created, daemon.pod.key.clone()));
        let (finished, live): (Vec<_>, Vec<_>) = on_node.into_iter().partition(|daemon| daemon.pod.phase.is_terminal());
        for daemon in finished.iter().filter(|daemon| daemon.pod.deletion.is_none()) {
            match pods::replaceable_in(&daemon.pod, now) {
                None => plan.finished.push((node.clone(), daemon.pod.clone())),
                Some(wait) => {
                    plan.requeue_after =
                        Some(plan.requeue_after.map_or(wait, |requeue_after: Duration| requeue_after.min(wait)))
                }
            }
        }
        plan.delete.extend(
            live.iter().skip(1).filter(|daemon| daemon.pod.deletion.is_none()).map(|daemon| daemon.pod.clone()),
        );
        match live.first() {
            None if finished.is_empty() => plan.create.push(node.clone()),
            None => {}
            Some(daemon) => {
                let available = daemon.pod.is_active() && daemon.pod.is_available(min_ready, now);
                if !available {
                    unavailable_nodes += 1;
                }
                if !daemon.updated && daemon.pod.deletion.is_none() {
                    outdated.push((available, daemon.pod.clone()));
                }
            }
        }
    }
    let misplaced = by_node.into_values().flatten().filter(|daemon| daemon.pod.deletion.is_none());
    plan.delete.extend(misplaced.map(|daemon| daemon.pod.clone()));
    if let Some(unavailable) = unavailable {
        unavailable_nodes += count(&plan.create);
        // Unavailable pods are replaced at once.
        for (available, pod) in outdated {
            if !available {
                plan.delete.push(pod);
            } else if unavailable_nodes < unavailable {
                unavailable_nodes += 1;
                plan.delete.push(pod);
            }
        }
    }
    plan
}

async fn reconcile(world: &World, key: &Key) -> Result<Option<Duration>> {
    let Some(set) = world.daemon_sets.get(key) else { return Ok(None) };
    let spec = &set.spec;
    if set.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let parent = Parent::new(&set, "apps/v1", "DaemonSet", "daemonset-controller");
    let labels = json!(spec.selector.match_labels.clone().unwrap_or_default());
    let revisions = Revisions::of(world, &parent, &spec.template, &labels).await?;
    let hash = revisions
        .current
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(HASH_LABEL).cloned())
        .unwrap_or_default();
    let eligible = eligible(world, &parent, &spec.template);
    let owned = pods::claim(world, &parent, &Selector::valid_or_nothing(&spec.selector), false).await?;
    let min_ready = i64::from(spec.min_ready_seconds.unwrap_or_default());
    let now = Timestamp::now();
    let step = plan(&eligible, &daemons(&owned, &hash), unavailable(spec, eligible.len()), min_ready, now);
    let new = step.create.iter().map(|node| new_pod(&parent, &spec.template, node, &hash)).collect::<Vec<_>>();
    if !new.is_empty() {
        pods::create(world, &parent, new).await?;
    }
    for (node, pod) in &step.finished {
        let (failed, key) = (pod.phase == Phase::Failed, &pod.key);
        let (reason, message) = if failed {
            ("FailedDaemonPod", format!("Found failed daemon pod {key} on node {node}, will try to kill it"))
        } else {
            ("SucceededDaemonPod", format!("Found succeeded daemon pod {key} on node {node}, will try to delete it"))
        };
        parent.record(world, failed, reason, message);
    }
    let finished: Vec<_> = step.finished.iter().map(|(_, pod)| pod.clone()).collect();
    pods::delete(world, &parent, &finished).await?;
    pods::delete(world, &parent, &step.delete).await?;
    let owned = world.pods.owned(&parent.subject.uid);
    let status = status(&set, &eligible, &daemons(&owned, &hash), min_ready, now);
    world.set_status(&world.daemon_sets, &set, set.status.as_ref(), &status).await?;
    let in_use = |name: &str| {
        let suffix = name.rsplit('-').next().unwrap_or_default();
        suffix == hash || owned.iter().any(|pod| pod.labels.get(HASH_LABEL).is_some_and(|known| known == suffix))
    };
    revisions.trim(world, spec.revision_history_limit.unwrap_or(10), in_use).await?;
    let available = replicaset::next_available(&owned, spec.min_ready_seconds.unwrap_or_default(), now);
    Ok(step.requeue_after.into_iter().chain(available).min())
}

/// Number of nodes without an available pod during an update; `None` for OnDelete.
fn unavailable(spec: &DaemonSetSpec, nodes: usize) -> Option<i32> {
    let strategy = spec.update_strategy.clone().unwrap_or_default();
    if strategy.type_.as_deref() == Some("OnDelete") {
        return None;
    }
    let max_unavailable =
        strategy.rolling_update.and_then(|rolling| rolling.max_unavailable).unwrap_or(IntOrString::Int(1));
    Some(resolve(&max_unavailable, count(0..nodes), true).max(1))
}

/// Nodes on which a pod of the template can run.
fn eligible(world: &World, parent: &Parent, template: &PodTemplateSpec) -> Vec<Arc<str>> {
    let spec: Arc<SpecView> = world.interner.pod(new_pod(parent, template, "", "")).spec;
    // The affinity to a single node is ignored.
    let mut spec = SpecView::clone(&spec);
    spec.affinity = template.spec.as_ref().and_then(|spec| spec.affinity.clone()).map(Box::new);
    let mut names: Vec<_> = world
        .nodes
        .all()
        .iter()
        .map(|node| NodeView::new(node))
        .filter(|node| placeable(&spec, node).is_ok())
        .map(|node| node.name)
        .collect();
    names.sort();
    names
}

fn daemons(pods: &[Arc<PodState>], hash: &str) -> Vec<Daemon> {
    let daemon = |pod: &Arc<PodState>| {
        let node = pod.node.clone().or_else(|| target_node(&pod.spec))?;
        let updated = pod.labels.get(HASH_LABEL).is_some_and(|known| known == hash);
        Some(Daemon { node, pod: pod.clone(), updated })
    };
    pods.iter().filter_map(daemon).collect()
}

/// The node in a daemon pod's affinity.
fn target_node(spec: &SpecView) -> Option<Arc<str>> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let fields = required.node_selector_terms.first()?.match_fields.as_ref()?;
    let name = fields.iter().find(|field| field.key == "metadata.name")?.values.as_ref()?.first()?;
    Some(name.as_str().into())
}

fn new_pod(parent: &Parent, template: &PodTemplateSpec, node: &str, hash: &str) -> Pod {
    let mut pod = pods::from_template(parent, template);
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

fn status(
    set: &DaemonSet,
    eligible: &[Arc<str>],
    daemons: &[Daemon],
    min_ready: i64,
    now: Timestamp,
) -> DaemonSetStatus {
    let old = set.status.clone().unwrap_or_default();
    let placed: Vec<&Daemon> = eligible
        .iter()
        .filter_map(|node| {
            let on_node = daemons.iter().filter(|daemon| daemon.node == *node && !daemon.pod.phase.is_terminal());
            on_node.min_by_key(|daemon| (daemon.pod.deletion.is_some(), daemon.pod.created))
        })
        .collect();
    let desired = count(eligible);
    let available = count(placed.iter().filter(|daemon| daemon.pod.is_available(min_ready, now)));
    let misplaced = daemons.iter().filter(|daemon| !eligible.contains(&daemon.node) && daemon.pod.is_active());
    DaemonSetStatus {
        desired_number_scheduled: desired,
        current_number_scheduled: count(&placed),
        number_ready: count(placed.iter().filter(|daemon| daemon.pod.is_ready())),
        number_available: nonzero(available),
        number_unavailable: nonzero(desired - available),
        number_misscheduled: count(misplaced),
        updated_number_scheduled: nonzero(count(placed.iter().filter(|daemon| daemon.updated))),
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
    fn daemons(text: &str) -> Vec<Daemon> {
        text.split_whitespace()
            .map(|word| {
                let (node, flags) = word.split_once(':').unwrap();
                let ready = if flags.contains('r') { "True" } else { "False" };
                let pod = json!({"metadata": {"name": word, "uid": word}, "spec": {"nodeName": node, "containers": []},
                    "status": {"phase": if flags.contains('f') { "Failed" } else { "Running" }, "conditions": [
                        {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
                let pod = Arc::new(Interner::default().pod(serde_json::from_value(pod).unwrap()));
                Daemon { node: node.into(), pod, updated: flags.contains('*') }
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
    fn plans(
        #[case] nodes: &str,
        #[case] pods: &str,
        #[case] unavailable: Option<i32>,
        #[case] create: &str,
        #[case] delete: &str,
    ) {
        let eligible: Vec<Arc<str>> = nodes.split_whitespace().map(Into::into).collect();
        let plan = plan(&eligible, &daemons(pods), unavailable, 0, Timestamp::now());
        let finished = plan.finished.iter().map(|(_, pod)| pod);
        let deleted: Vec<_> = finished.chain(&plan.delete).map(|pod| pod.key.name.to_string()).collect();
        assert_eq!((plan.create.join(" "), deleted.join(" ")), (create.to_owned(), delete.to_owned()));
    }
}
