//! Graceful eviction tasks: which continue, which are complete and which are cancelled. [`super::safety`] decides if
//! a task may complete.

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

/// The remaining tasks, and when to check again.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskPlan {
    pub tasks: Vec<GracefulEvictionTask>,
    pub look_again: Option<Timestamp>,
}

/// Input of the decision about a binding's eviction tasks.
pub struct EvictionInput<'a> {
    pub safety: Safety,
    pub generation: i64,
    pub spec: &'a ResourceBindingSpec,
    pub status: &'a ResourceBindingStatus,
    /// Default of `gracePeriodSeconds`.
    pub timeout: SignedDuration,
    /// The existing clusters among the targets and the sources of tasks.
    pub clusters: &'a BTreeMap<String, Arc<Cluster>>,
    /// Tolerations of the binding. `None` if they are unknown.
    pub tolerations: Option<&'a [Toleration]>,
}

impl EvictionInput<'_> {
    /// Aggregated status of a cluster. `None` once its Work is being deleted.
    pub(super) fn item(&self, cluster: &str) -> Option<&AggregatedStatusItem> {
        self.status.aggregated_status.iter().find(|item| item.cluster_name == cluster)
    }

    pub(super) fn health(&self, cluster: &str) -> Option<&ResourceHealth> {
        self.item(cluster)?.health.as_ref()
    }

    pub(super) fn is_healthy(&self, cluster: &str) -> bool {
        self.health(cluster) == Some(&ResourceHealth::Healthy)
    }

    fn end_of(&self, task: &GracefulEvictionTask, created: Timestamp) -> Timestamp {
        let seconds = task.grace_period_seconds.map(|seconds| SignedDuration::from_secs(seconds.into()));
        created.saturating_add(seconds.unwrap_or(self.timeout)).unwrap_or(Timestamp::MAX)
    }
}

/// Completes tasks whose replacement is healthy or whose time is over, and sets the creation time of new ones. A task
/// that timed out without a replacement continues and reports why.
pub fn tasks(evicting: &EvictionInput<'_>, now: Timestamp) -> TaskPlan {
    let replaced = safety::is_replaced(evicting);
    let mut plan = TaskPlan { tasks: Vec::new(), look_again: None };
    for task in &evicting.spec.graceful_eviction_tasks {
        let Some(created) = &task.creation_timestamp else {
            plan.tasks.push(GracefulEvictionTask { creation_timestamp: Some(Time(now)), ..task.clone() });
            continue;
        };
        match task.suppress_deletion {
            Some(true) => plan.tasks.push(task.clone()),
            Some(false) => {}
            None if replaced => {}
            None => {
                let end = evicting.end_of(task, created.0);
                if now < end {
                    plan.look_again = Some(plan.look_again.map_or(end, |earlier| earlier.min(end)));
                    plan.tasks.push(task.clone());
                } else if !safety::may_time_out(evicting, task) {
                    plan.tasks.push(GracefulEvictionTask { message: safety::why_kept(evicting), ..task.clone() });
                }
            }
        }
    }
    plan
}
