//! Status and conditions of a Deployment.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentSpec, DeploymentStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::member::workload::nonzero;
use crate::member::workload::rollout::{ReplicaSetView, RolloutTargets};

/// Computes the status, and the time until the progress deadline must be checked. `created` is the name of a ReplicaSet
/// that was just created.
pub fn compute_status(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    sets: &[ReplicaSetView],
    created: Option<&str>,
    observed_generation: Option<i64>,
    now: Timestamp,
) -> (DeploymentStatus, Option<Duration>) {
    let old = deployment.status.clone().unwrap_or_default();
    let rollout_targets = RolloutTargets::new(spec);
    let sum = |field: fn(&ReplicaSetView) -> i32| sets.iter().map(field).sum::<i32>();
    let available = sum(|set| set.available);
    let new_set = sets.iter().find(|set| set.is_new);
    let mut status = DeploymentStatus {
        replicas: nonzero(sum(|set| set.replicas)),
        updated_replicas: nonzero(new_set.map_or(0, |set| set.replicas)),
        ready_replicas: nonzero(sum(|set| set.ready)),
        available_replicas: nonzero(available),
        unavailable_replicas: nonzero((sum(|set| set.spec_replicas) - available).max(0)),
        observed_generation,
        collision_count: old.collision_count,
        conditions: None,
        terminating_replicas: None,
    };
    let mut conditions = Conditions { list: old.conditions.clone().unwrap_or_default(), now };
    if available >= rollout_targets.min_available() {
        conditions.set("Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability.".into());
    } else {
        let message = "Deployment does not have minimum availability.".into();
        conditions.set("Available", "False", "MinimumReplicasUnavailable", message);
    }
    let is_complete = sum(|set| set.replicas) == rollout_targets.replicas
        && new_set.map_or(0, |set| set.replicas) == rollout_targets.replicas
        && available == rollout_targets.replicas;
    let deadline_seconds = spec.progress_deadline_seconds.filter(|seconds| *seconds != i32::MAX);
    let mut requeue_after = None;
    if let Some(deadline_seconds) = deadline_seconds {
        let new_set_name = new_set.map_or("", |set| &set.name);
        requeue_after = set_progressing(
            &mut conditions,
            &rollout_targets,
            &old,
            &status,
            is_complete,
            created,
            new_set_name,
            deadline_seconds,
        );
    }
    status.conditions = Some(conditions.list);
    (status, requeue_after)
}

struct Conditions {
    list: Vec<DeploymentCondition>,
    now: Timestamp,
}

impl Conditions {
    fn get(&self, kind: &str) -> Option<&DeploymentCondition> {
        self.list.iter().find(|condition| condition.type_.as_deref() == Some(kind))
    }

    /// Sets a condition unless its status and reason are unchanged. An unchanged status keeps its transition time.
    fn set(&mut self, kind: &str, status: &str, reason: &str, message: String) {
        let current = self.get(kind);
        if current.is_some_and(|current| {
            current.status.as_deref() == Some(status) && current.reason.as_deref() == Some(reason)
        }) {
            return;
        }
        self.replace(kind, status, reason, message);
    }

    /// Like [`Conditions::set`], but always updates the condition.
    fn replace(&mut self, kind: &str, status: &str, reason: &str, message: String) {
        let now = Some(Time(self.now));
        let transition_time = self
            .get(kind)
            .filter(|current| current.status.as_deref() == Some(status))
            .and_then(|current| current.last_transition_time.clone());
        self.list.retain(|condition| condition.type_.as_deref() != Some(kind));
        self.list.push(DeploymentCondition {
            type_: Some(kind.into()),
            status: Some(status.into()),
            reason: Some(reason.into()),
            message: Some(message),
            last_update_time: now.clone(),
            last_transition_time: transition_time.or(now),
        });
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "the Progressing condition depends on all of them, and there is one caller"
)]
/// Sets the condition Progressing and returns the time until the progress deadline.
fn set_progressing(
    conditions: &mut Conditions,
    rollout_targets: &RolloutTargets,
    old: &DeploymentStatus,
    new: &DeploymentStatus,
    is_complete: bool,
    created: Option<&str>,
    new_set_name: &str,
    deadline_seconds: i32,
) -> Option<Duration> {
    const KIND: &str = "Progressing";
    let reason = conditions.get(KIND).and_then(|current| current.reason.clone()).unwrap_or_default();
    if rollout_targets.is_paused {
        conditions.set(KIND, "Unknown", "DeploymentPaused", "Deployment is paused".into());
        return None;
    }
    if reason == "DeploymentPaused" {
        conditions.set(KIND, "Unknown", "DeploymentResumed", "Deployment is resumed".into());
    }
    if let Some(created) = created {
        conditions.replace(KIND, "True", "NewReplicaSetCreated", format!("Created new replica set \"{created}\""));
    }
    let was_complete = reason == "NewReplicaSetAvailable"
        && old.replicas.unwrap_or_default() == old.updated_replicas.unwrap_or_default()
        && created.is_none()
        && new.replicas == new.updated_replicas;
    if was_complete {
        return None;
    }
    let has_increased =
        |count: fn(&DeploymentStatus) -> Option<i32>| count(new).unwrap_or_default() > count(old).unwrap_or_default();
    let old_replicas =
        |status: &DeploymentStatus| status.replicas.unwrap_or_default() - status.updated_replicas.unwrap_or_default();
    let is_progressing = has_increased(|status| status.updated_replicas)
        || old_replicas(new) < old_replicas(old)
        || has_increased(|status| status.ready_replicas)
        || has_increased(|status| status.available_replicas);
    if is_complete {
        let message = format!("ReplicaSet \"{new_set_name}\" has successfully progressed.");
        conditions.set(KIND, "True", "NewReplicaSetAvailable", message);
        return None;
    }
    if is_progressing || conditions.get(KIND).is_none() {
        conditions.replace(KIND, "True", "ReplicaSetUpdated", format!("ReplicaSet \"{new_set_name}\" is progressing."));
    }
    let since = conditions
        .get(KIND)
        .and_then(|current| current.last_update_time.as_ref())
        .map_or(conditions.now, |time| time.0);
    let remaining_seconds = i64::from(deadline_seconds) - conditions.now.duration_since(since).as_secs();
    if remaining_seconds > 0 {
        return Some(Duration::from_secs(u64::try_from(remaining_seconds).unwrap_or_default()));
    }
    let message = format!("ReplicaSet \"{new_set_name}\" has timed out progressing.");
    conditions.set(KIND, "False", "ProgressDeadlineExceeded", message);
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + second).unwrap()
    }

    fn view(replicas: i32, available: i32) -> ReplicaSetView {
        ReplicaSetView { created: at(0), ..ReplicaSetView::with_replicas("web-1", replicas, available) }
    }

    #[test]
    fn conditions_show_availability_progress_and_the_progress_deadline() {
        let mut deployment: Deployment = serde_json::from_value(json!({
            "metadata": {"name": "web", "generation": 3},
            "spec": {"replicas": 2, "progressDeadlineSeconds": 10, "selector": {}, "template": {}},
        }))
        .unwrap();
        let spec = deployment.spec.clone();
        let mut lines = Vec::new();
        let steps = [(0, 0, Some("web-1")), (1, 0, None), (2, 1, None), (13, 1, None), (14, 2, None)];
        for (second, available, created) in steps {
            let (status, requeue_after) =
                compute_status(&deployment, &spec, &[view(2, available)], created, Some(3), at(second));
            let condition = |kind: &str| {
                let condition =
                    status.conditions.iter().flatten().find(|condition| condition.type_.as_deref() == Some(kind));
                condition
                    .map(|condition| {
                        format!(
                            "{} {}",
                            condition.status.clone().unwrap_or_default(),
                            condition.reason.clone().unwrap_or_default()
                        )
                    })
                    .unwrap_or_default()
            };
            lines.push(format!(
                "{second}: {} | {} | {:?}",
                condition("Available"),
                condition("Progressing"),
                requeue_after.map(|duration| duration.as_secs())
            ));
            deployment.status = Some(status);
        }
        insta::assert_snapshot!(lines.join("\n"), @r"
        0: False MinimumReplicasUnavailable | True ReplicaSetUpdated | Some(10)
        1: False MinimumReplicasUnavailable | True ReplicaSetUpdated | Some(9)
        2: False MinimumReplicasUnavailable | True ReplicaSetUpdated | Some(10)
        13: False MinimumReplicasUnavailable | False ProgressDeadlineExceeded | None
        14: True MinimumReplicasAvailable | True NewReplicaSetAvailable | None
        ");
    }
}
