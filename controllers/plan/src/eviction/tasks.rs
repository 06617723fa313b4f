//! Graceful eviction tasks: decides which of them continue and which are complete. [`super::safety`] decides if a task
//! may complete, and cancels tasks.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::work::{
    AggregatedStatusItem, GracefulEvictionTask, ResourceBindingSpec, ResourceBindingStatus, ResourceHealth,
};
use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::safety::{self, Safety};

/// Planned eviction tasks of a binding.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskPlan {
    /// The tasks that continue.
    pub tasks: Vec<GracefulEvictionTask>,
    /// The earliest time at which a task times out. `None` if no task waits for its timeout.
    pub next_check: Option<Timestamp>,
}

/// Input of the decision about a binding's eviction tasks.
pub struct EvictionInput<'a> {
    pub safety: Safety,
    pub generation: i64,
    pub spec: &'a ResourceBindingSpec,
    pub status: &'a ResourceBindingStatus,
    /// Grace period of tasks that set no `gracePeriodSeconds`.
    pub timeout: SignedDuration,
    /// The existing clusters among the targets and the sources of tasks.
    pub clusters: &'a BTreeMap<String, Arc<Cluster>>,
    /// Tolerations of the binding. `None` if they are unknown.
    pub tolerations: Option<&'a [Toleration]>,
}

impl EvictionInput<'_> {
    /// Aggregated status of a cluster. `None` once its Work is being deleted.
    pub(super) fn status_item(&self, cluster: &str) -> Option<&AggregatedStatusItem> {
        self.status.aggregated_status.iter().find(|item| item.cluster_name == cluster)
    }

    pub(super) fn health(&self, cluster: &str) -> Option<&ResourceHealth> {
        self.status_item(cluster)?.health.as_ref()
    }

    pub(super) fn is_healthy(&self, cluster: &str) -> bool {
        self.health(cluster) == Some(&ResourceHealth::Healthy)
    }

    /// End of the task's grace period.
    fn deadline(&self, task: &GracefulEvictionTask, created: Timestamp) -> Timestamp {
        let seconds = task.grace_period_seconds.map(|seconds| SignedDuration::from_secs(seconds.into()));
        created.saturating_add(seconds.unwrap_or(self.timeout)).unwrap_or(Timestamp::MAX)
    }
}

/// Completes tasks whose replacement is healthy or that have timed out, and sets the creation time of new ones. A task
/// that has timed out but must not complete without a healthy replacement continues, with the reason as its message.
pub fn plan_tasks(input: &EvictionInput<'_>, now: Timestamp) -> TaskPlan {
    let is_replaced = safety::is_replaced(input);
    let mut plan = TaskPlan { tasks: Vec::new(), next_check: None };
    for task in &input.spec.graceful_eviction_tasks {
        let Some(created) = &task.creation_timestamp else {
            plan.tasks.push(GracefulEvictionTask { creation_timestamp: Some(Time(now)), ..task.clone() });
            continue;
        };
        match task.suppress_deletion {
            Some(true) => plan.tasks.push(task.clone()),
            Some(false) => {}
            None if is_replaced => {}
            None => {
                let deadline = input.deadline(task, created.0);
                if now < deadline {
                    plan.next_check = Some(plan.next_check.map_or(deadline, |earlier| earlier.min(deadline)));
                    plan.tasks.push(task.clone());
                } else if !safety::may_complete_on_timeout(input, task) {
                    plan.tasks.push(GracefulEvictionTask { message: safety::retention_message(input), ..task.clone() });
                }
            }
        }
    }
    plan
}
