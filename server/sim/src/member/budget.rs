//! PodDisruptionBudgets: how many pods may be disrupted now.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::selector::Selector;
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::error::Result;

use super::pod::PodState;
use super::store::{Index, Key, Stored};
use super::workload::rollout::resolve;
use super::workload::{count, keys_of, spawn};
use super::world::World;

pub fn start(world: &Arc<World>) {
    let keys = keys_of(&world.budgets);
    let (wanted, budgets) = (keys.clone(), Arc::downgrade(&world.budgets));
    world.pods.on_change(move |old, new| {
        let (Some(pod), Some(budgets)) = (new.or(old), budgets.upgrade()) else { return };
        for budget in budgets.by(&Index::Namespace(pod.key.namespace.clone())) {
            wanted.add(budget.key());
        }
    });
    spawn(world, "disruption", keys, 2, |world, key| async move { reconcile(&world, &key).await });
}

async fn reconcile(world: &World, key: &Key) -> Result<Option<Duration>> {
    let Some(budget) = world.budgets.get(key) else { return Ok(None) };
    let Some(spec) = budget.spec.as_ref() else { return Ok(None) };
    let selector = spec.selector.as_ref().map(Selector::valid_or_nothing);
    let selected = |pod: &Arc<PodState>| selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels));
    let pods: Vec<_> = world
        .pods
        .namespace(&key.namespace)
        .into_iter()
        .filter(|pod| !pod.phase.is_terminal() && selected(pod))
        .collect();
    let scale = expected(world, &pods);
    let status = status(&budget, spec, &pods, scale, Timestamp::now());
    world.set_status(&world.budgets, &budget, budget.status.as_ref(), &status).await?;
    Ok(None)
}

/// Replicas wanted by the controllers of these pods.
fn expected(world: &World, pods: &[Arc<PodState>]) -> i32 {
    let mut wanted: HashMap<String, i32> = HashMap::new();
    for pod in pods {
        let Some(owner) = &pod.owner else { continue };
        let key = Key::new(&pod.key.namespace, &owner.name);
        let (uid, replicas) = match &*owner.kind {
            "ReplicaSet" => {
                let Some(set) = world.replica_sets.get(&key) else { continue };
                let deployment =
                    super::informer::controller_of(&set.metadata).filter(|owner| owner.kind == "Deployment");
                let deployment =
                    deployment.and_then(|owner| world.deployments.get(&Key::new(&key.namespace, &owner.name)));
                match deployment {
                    Some(deployment) => (deployment.uid().to_owned(), deployment.spec.replicas.unwrap_or(1)),
                    None => (set.uid().to_owned(), set.spec.replicas.unwrap_or(1)),
                }
            }
            "StatefulSet" => {
                let Some(set) = world.stateful_sets.get(&key) else { continue };
                (set.uid().to_owned(), set.spec.replicas.unwrap_or(1))
            }
            _ => continue,
        };
        wanted.insert(uid, replicas);
    }
    wanted.values().sum()
}

/// The status for the selected pods, of which their controllers want `scale`.
fn status(
    budget: &PodDisruptionBudget,
    spec: &PodDisruptionBudgetSpec,
    pods: &[Arc<PodState>],
    scale: i32,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let healthy = count(pods.iter().filter(|pod| pod.is_ready() && pod.deletion.is_none()));
    let present = count(pods);
    let (expected, desired) = match (&spec.max_unavailable, &spec.min_available) {
        (Some(unavailable), _) => (scale, (scale - resolve(unavailable, scale, true)).max(0)),
        (None, Some(IntOrString::Int(available))) => (present, *available),
        (None, Some(available)) => (scale, resolve(available, scale, true)),
        (None, None) => (present, present),
    };
    let allowed = if expected == 0 { 0 } else { (healthy - desired).max(0) };
    let (holds, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let old = budget.status.clone().unwrap_or_default();
    let mut conditions = old.conditions.unwrap_or_default();
    let generation = budget.metadata.generation;
    match conditions.iter_mut().find(|condition| condition.type_ == "DisruptionAllowed") {
        Some(known) if known.status == holds => known.observed_generation = generation,
        known => {
            let fresh = Condition {
                type_: "DisruptionAllowed".into(),
                status: holds.into(),
                reason: reason.into(),
                message: String::new(),
                observed_generation: generation,
                last_transition_time: Time(now),
            };
            match known {
                Some(known) => *known = fresh,
                None => conditions.push(fresh),
            }
        }
    }
    PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        disruptions_allowed: Some(allowed),
        expected_pods: Some(expected),
        observed_generation: generation,
        disrupted_pods: None,
        conditions: Some(conditions),
    }
}
