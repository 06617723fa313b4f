//! Failback: moves a workload that was evicted by a taint back to its original clusters once they have been healthy
//! for long enough. Opt-in per policy or binding, as `after=10m,rate=1/m`. The taint manager records the original
//! clusters, the failback controller moves workloads back. The replacement stays until the original clusters are
//! healthy, unless only one copy may run.

use std::str::FromStr;
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{condition, eviction};
use crowsnest_api::policy::PurgeMode;
use crowsnest_api::work::{GracefulEvictionTask, ResourceBindingSpec, ResourceBindingStatus, TargetCluster};
use crowsnest_apimachinery::taints;
use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::conditions;

/// Maximum of [`FailbackOptions::after`].
const MAX_AFTER: Duration = Duration::from_secs(366 * 24 * 3600);

/// Failback settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailbackOptions {
    /// Time for which the original clusters must have been healthy.
    pub after: Duration,
    /// Interval between two failbacks in the fleet.
    pub interval: Duration,
}

impl Default for FailbackOptions {
    fn default() -> Self {
        FailbackOptions { after: Duration::from_secs(600), interval: Duration::from_secs(60) }
    }
}

/// Invalid failback settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FailbackOptionsError {
    #[error("invalid failback setting {0:?}: must be after=DURATION or rate=NUMBER/UNIT, as in after=10m,rate=1/m")]
    Unknown(String),
    #[error("invalid duration after={0}: must be such as 10m or 1h30m, and at most a year (8784h)")]
    After(String),
    #[error("invalid rate rate={0}: must be such as 1/m, that is a number of at least 1 and s, m or h")]
    Rate(String),
}

impl FromStr for FailbackOptions {
    type Err = FailbackOptionsError;

    fn from_str(text: &str) -> Result<Self, FailbackOptionsError> {
        let mut options = FailbackOptions::default();
        for part in text.split(',').map(str::trim) {
            match part.split_once('=') {
                Some(("after", after)) => {
                    let duration = after.parse::<SignedDuration>().ok();
                    let duration = duration.and_then(|duration| Duration::try_from(duration).ok());
                    let duration = duration.filter(|duration| *duration <= MAX_AFTER);
                    options.after = duration.ok_or_else(|| FailbackOptionsError::After(after.to_owned()))?;
                }
                Some(("rate", rate)) => {
                    options.interval = parse_rate(rate).ok_or_else(|| FailbackOptionsError::Rate(rate.to_owned()))?
                }
                _ => return Err(FailbackOptionsError::Unknown(part.to_owned())),
            }
        }
        Ok(options)
    }
}

/// Parses a rate into an interval: `2/m` is every 30 seconds.
fn parse_rate(rate: &str) -> Option<Duration> {
    let (number, unit) = rate.split_once('/')?;
    let unit = match unit {
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        "h" => Duration::from_secs(3600),
        _ => return None,
    };
    unit.checked_div(number.parse().ok()?)
}

/// Placement of a workload before its first eviction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OriginalPlacement {
    pub clusters: Vec<TargetCluster>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub replicas: i32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub affinity_name: String,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

impl OriginalPlacement {
    /// Records the current placement.
    pub fn from_binding(spec: &ResourceBindingSpec, status: &ResourceBindingStatus) -> Self {
        OriginalPlacement {
            clusters: spec.clusters.clone(),
            replicas: spec.replicas,
            affinity_name: status.scheduler_observed_affinity_name.clone(),
        }
    }

    fn contains(&self, cluster: &str) -> bool {
        self.clusters.iter().any(|target| target.name == cluster)
    }

    /// True if the targets are exactly the original clusters.
    pub fn matches_targets(&self, targets: &[TargetCluster]) -> bool {
        targets.len() == self.clusters.len() && targets.iter().all(|target| self.contains(&target.name))
    }

    /// Next failback step of a workload, derived from its binding.
    pub fn next_step(&self, spec: &ResourceBindingSpec) -> FailbackStep {
        let has_failback_task =
            spec.graceful_eviction_tasks.iter().any(|task| task.producer == eviction::PRODUCER_FAILBACK);
        let leaves_original_cluster = spec.graceful_eviction_tasks.iter().any(|task| self.contains(&task.from_cluster));
        match self.matches_targets(&spec.clusters) {
            true if has_failback_task => FailbackStep::Wait,
            true => FailbackStep::Complete,
            false if has_failback_task || leaves_original_cluster => FailbackStep::Wait,
            false => FailbackStep::MoveBack,
        }
    }

    /// True if a cluster is ready, has no untolerated taint and is not being deleted.
    pub fn accepts_workloads(cluster: &Cluster, tolerations: &[Toleration]) -> bool {
        let is_ready = conditions::is_true(&cluster.status.conditions, condition::READY);
        let taints = &cluster.spec.taints;
        let is_tolerated = taints::first_untolerated_taint(taints, tolerations, taints::prevents_scheduling).is_none();
        is_ready && is_tolerated && cluster.metadata.deletion_timestamp.is_none()
    }

    /// The spec of the binding after failback has started: evictions from all clusters but the original ones, and a
    /// rescheduling trigger.
    pub fn start_failback(&self, spec: &ResourceBindingSpec, purge: &PurgeMode, now: Timestamp) -> ResourceBindingSpec {
        let mut updated_spec = spec.clone();
        updated_spec.clusters.retain(|target| self.contains(&target.name));
        for target in spec.clusters.iter().filter(|target| !self.contains(&target.name) && !spec.evicts(&target.name)) {
            updated_spec.graceful_eviction_tasks.push(GracefulEvictionTask {
                from_cluster: target.name.clone(),
                purge_mode: Some(purge.clone()),
                replicas: (target.replicas > 0).then_some(target.replicas),
                reason: eviction::REASON_FAILBACK.to_owned(),
                producer: eviction::PRODUCER_FAILBACK.to_owned(),
                creation_timestamp: Some(Time(now)),
                ..GracefulEvictionTask::default()
            });
        }
        updated_spec.reschedule_triggered_at = Some(Time(now));
        updated_spec
    }
}

/// Next action of the failback controller for a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailbackStep {
    /// The workload runs in other clusters and can be moved back.
    MoveBack,
    /// An eviction or the failback is in progress.
    Wait,
    /// The workload runs in its original clusters.
    Complete,
}
