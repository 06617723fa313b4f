//! Disruption controller: computes how many pods of a PodDisruptionBudget may be disrupted.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::selector::Selector;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::error::Result;

use super::context::MemberContext;
use super::pod::PodState;
use super::recorder::{Source, Subject};
use super::store::{Index, Key, StoreObject};
use super::workload::rollout::resolve_int_or_percent;
use super::workload::{count, new_change_queue, spawn_controller};

/// Time after which an evicted pod that is not being deleted counts as healthy again.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

const SOURCE: Source = Source { component: "controllermanager", host: None };

pub fn start(context: &Arc<MemberContext>) {
    let keys = new_change_queue(&context.budgets);
    let (queue, budgets) = (keys.clone(), Arc::downgrade(&context.budgets));
    context.pods.on_change(move |old, new| {
        let (Some(pod), Some(budgets)) = (new.or(old), budgets.upgrade()) else { return };
        for budget in budgets.by_index(&Index::Namespace(pod.key.namespace.clone())) {
            queue.add(budget.key());
        }
    });
    spawn_controller(context, "disruption", keys, 2, |context, key| async move { reconcile(&context, &key).await });
}

async fn reconcile(context: &MemberContext, key: &Key) -> Result<Option<Duration>> {
    let Some(budget) = context.budgets.get(key) else { return Ok(None) };
    let Some(spec) = budget.spec.as_ref() else { return Ok(None) };
    let selector = spec.selector.as_ref().map(Selector::from_label_selector_or_nothing);
    let is_selected = |pod: &Arc<PodState>| selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels));
    let pods: Vec<_> = context
        .pods
        .in_namespace(&key.namespace)
        .into_iter()
        .filter(|pod| !pod.phase.is_terminal() && is_selected(pod))
        .collect();
    let scale = expected_pod_count(context, &pods);
    let now = Timestamp::now();
    let (status, next_check) = compute_status(&budget, spec, &pods, scale, now);
    for pod in find_overdue(&budget, &pods, now) {
        let subject = Subject::pod(&pod.key, &pod.uid);
        let message = format!("Pod was expected by PDB {key} to be deleted but it wasn't");
        context.recorder.record(subject, SOURCE, true, "NotDeleted", message);
    }
    context.set_status(&context.budgets, &budget, budget.status.as_ref(), &status).await?;
    Ok(next_check.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default() + Duration::from_millis(1)))
}

/// Time by which an evicted pod must be deleted.
fn deletion_deadline(budget: &PodDisruptionBudget, pod: &PodState) -> Option<Timestamp> {
    let evicted = budget.status.as_ref()?.disrupted_pods.as_ref()?.get(&*pod.key.name)?;
    evicted.0.checked_add(DELETION_TIMEOUT).ok()
}

/// Evicted pods that were not deleted in time.
fn find_overdue<'a>(budget: &PodDisruptionBudget, pods: &'a [Arc<PodState>], now: Timestamp) -> Vec<&'a Arc<PodState>> {
    let is_late = |pod: &PodState| pod.deletion.is_none() && deletion_deadline(budget, pod).is_some_and(|at| at < now);
    pods.iter().filter(|pod| is_late(pod)).collect()
}

/// Sum of the desired replicas of the controllers of these pods.
fn expected_pod_count(context: &MemberContext, pods: &[Arc<PodState>]) -> i32 {
    let mut replicas_by_uid: HashMap<String, i32> = HashMap::new();
    for pod in pods {
        let Some(owner) = &pod.owner else { continue };
        let key = Key::new(&pod.key.namespace, &owner.name);
        let (uid, replicas) = match &*owner.kind {
            "ReplicaSet" => {
                let Some(set) = context.replica_sets.get(&key) else { continue };
                let deployment =
                    super::informer::controller_of(&set.metadata).filter(|owner| owner.kind == "Deployment");
                let deployment =
                    deployment.and_then(|owner| context.deployments.get(&Key::new(&key.namespace, &owner.name)));
                match deployment {
                    Some(deployment) => (deployment.uid().to_owned(), deployment.spec.replicas.unwrap_or(1)),
                    None => (set.uid().to_owned(), set.spec.replicas.unwrap_or(1)),
                }
            }
            "ReplicationController" => {
                let Some(controller) = context.replication_controllers.get(&key) else { continue };
                let spec = controller.spec.as_ref();
                (controller.uid().to_owned(), spec.and_then(|spec| spec.replicas).unwrap_or(1))
            }
            "StatefulSet" => {
                let Some(set) = context.stateful_sets.get(&key) else { continue };
                (set.uid().to_owned(), set.spec.replicas.unwrap_or(1))
            }
            _ => continue,
        };
        replicas_by_uid.insert(uid, replicas);
    }
    replicas_by_uid.values().sum()
}

/// Computes the status for the selected pods, and the time of the next check. `scale` is the desired number of pods.
///
/// Evicted pods count as disrupted until they are deleted or [`DELETION_TIMEOUT`] has passed.
fn compute_status(
    budget: &PodDisruptionBudget,
    spec: &PodDisruptionBudgetSpec,
    pods: &[Arc<PodState>],
    scale: i32,
    now: Timestamp,
) -> (PodDisruptionBudgetStatus, Option<Timestamp>) {
    let disrupted: BTreeMap<String, Timestamp> = pods
        .iter()
        .filter(|pod| pod.deletion.is_none())
        .filter_map(|pod| Some((pod.key.name.to_string(), deletion_deadline(budget, pod)?)))
        .filter(|(_, deadline)| *deadline >= now)
        .collect();
    let next_check = disrupted.values().min().copied();
    let disrupted: BTreeMap<String, Time> =
        disrupted.into_iter().map(|(name, deadline)| (name, Time(deadline - DELETION_TIMEOUT))).collect();
    let is_healthy =
        |pod: &&Arc<PodState>| pod.is_ready() && pod.deletion.is_none() && !disrupted.contains_key(&*pod.key.name);
    let healthy = count(pods.iter().filter(is_healthy));
    let present = count(pods);
    let (expected, desired) = match (&spec.max_unavailable, &spec.min_available) {
        (Some(unavailable), _) => (scale, (scale - resolve_int_or_percent(unavailable, scale, true)).max(0)),
        (None, Some(IntOrString::Int(available))) => (present, *available),
        (None, Some(available)) => (scale, resolve_int_or_percent(available, scale, true)),
        (None, None) => (present, present),
    };
    let allowed = if expected == 0 { 0 } else { (healthy - desired).max(0) };
    let (condition_status, reason) =
        if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let old = budget.status.clone().unwrap_or_default();
    let mut conditions = old.conditions.unwrap_or_default();
    let generation = budget.metadata.generation;
    match conditions.iter_mut().find(|condition| condition.type_ == "DisruptionAllowed") {
        Some(existing) if existing.status == condition_status => existing.observed_generation = generation,
        existing => {
            let condition = Condition {
                type_: "DisruptionAllowed".into(),
                status: condition_status.into(),
                reason: reason.into(),
                message: String::new(),
                observed_generation: generation,
                last_transition_time: Time(now),
            };
            match existing {
                Some(existing) => *existing = condition,
                None => conditions.push(condition),
            }
        }
    }
    let status = PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        disruptions_allowed: Some(allowed),
        expected_pods: Some(expected),
        observed_generation: generation,
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        conditions: Some(conditions),
    };
    (status, next_check)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::member::interner::Interner;

    /// Pods with flags: `r` ready, `t` terminating.
    fn pods(text: &str) -> Vec<Arc<PodState>> {
        let pod = |word: &str| {
            let (name, flags) = word.split_once(':').unwrap();
            let ready = if flags.contains('r') { "True" } else { "False" };
            let pod = json!({
                "metadata": {"name": name, "uid": name, "deletionTimestamp": flags.contains('t').then_some("2026-01-01T00:00:00Z")},
                "spec": {"nodeName": "n", "containers": []},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
            });
            Arc::new(Interner::default().intern_pod(serde_json::from_value(pod).unwrap()))
        };
        text.split_whitespace().map(pod).collect()
    }

    #[rstest::rstest]
    #[case(json!({"minAvailable": 1}), json!({}), "a:r b:r", (2, 1, 1), "", None)]
    // An evicted pod counts as disrupted for two minutes.
    #[case(json!({"minAvailable": 1}), json!({"a": "2026-01-01T00:00:00Z"}), "a:r b:r", (1, 1, 0), "a", Some(90))]
    #[case(json!({"minAvailable": 1}), json!({"a": "2025-12-31T23:58:00Z"}), "a:r b:r", (2, 1, 1), "", None)]
    #[case(json!({"minAvailable": 1}), json!({"a": "2026-01-01T00:00:00Z"}), "a:rt b:r", (1, 1, 0), "", None)]
    #[case(json!({"minAvailable": 1}), json!({"gone": "2026-01-01T00:00:00Z"}), "a:r b:r", (2, 1, 1), "", None)]
    #[case(json!({"maxUnavailable": 1}), json!({}), "a:r b:r c:", (2, 2, 0), "", None)]
    fn evicted_pods_count_as_disrupted_until_the_deletion_timeout(
        #[case] spec: Value,
        #[case] disrupted: Value,
        #[case] pods_text: &str,
        #[case] expected: (i32, i32, i32),
        #[case] disrupted_names: &str,
        #[case] next_check_seconds: Option<i64>,
    ) {
        let budget: PodDisruptionBudget = serde_json::from_value(
            json!({"metadata": {"name": "b"}, "spec": spec, "status": {"disruptedPods": disrupted}}),
        )
        .unwrap();
        let now: Timestamp = "2026-01-01T00:00:30Z".parse().unwrap();
        let pods = pods(pods_text);
        let (status, next_check) = compute_status(&budget, budget.spec.as_ref().unwrap(), &pods, count(&pods), now);
        let counts = [status.current_healthy, status.desired_healthy, status.disruptions_allowed].map(Option::unwrap);
        assert_eq!((counts[0], counts[1], counts[2]), expected);
        let names: Vec<String> = status.disrupted_pods.unwrap_or_default().into_keys().collect();
        assert_eq!(names.join(" "), disrupted_names);
        assert_eq!(next_check.map(|at| at.duration_since(now).as_secs()), next_check_seconds);
    }
}
