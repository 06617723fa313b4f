//! Going home: a workload that a taint drove out of its clusters goes back when they have been well for long enough. Only where
//! its policy or its binding asks for it, as `after=10m,rate=1/m`. The taint manager remembers where home is, the failback controller
//! brings workloads back; the copy that stood in stays until home is healthy, unless only one may run.

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

/// Nobody means to wait for longer.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// When workloads go home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Return {
    /// How long home has to have been well.
    pub after: Duration,
    /// Between two workloads of the fleet that go home.
    pub every: Duration,
}

impl Default for Return {
    fn default() -> Self {
        Return { after: Duration::from_secs(600), every: Duration::from_secs(60) }
    }
}

/// A wish to go home that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReturnError {
    #[error("{0:?} is neither after=DURATION nor rate=NUMBER/UNIT, as in after=10m,rate=1/m")]
    Unknown(String),
    #[error("after={0} is no duration such as 10m or 1h30m, a year (8784h) at most")]
    After(String),
    #[error("rate={0} is no rate such as 1/m: a number of at least 1, and s, m or h")]
    Rate(String),
}

impl FromStr for Return {
    type Err = ReturnError;

    fn from_str(text: &str) -> Result<Self, ReturnError> {
        let mut read = Return::default();
        for part in text.split(',').map(str::trim) {
            match part.split_once('=') {
                Some(("after", after)) => {
                    let duration = after.parse::<SignedDuration>().ok();
                    let duration = duration.and_then(|duration| Duration::try_from(duration).ok());
                    let duration = duration.filter(|duration| *duration <= LONGEST);
                    read.after = duration.ok_or_else(|| ReturnError::After(after.to_owned()))?;
                }
                Some(("rate", rate)) => {
                    read.every = interval(rate).ok_or_else(|| ReturnError::Rate(rate.to_owned()))?
                }
                _ => return Err(ReturnError::Unknown(part.to_owned())),
            }
        }
        Ok(read)
    }
}

/// `2/m` is every 30 seconds.
fn interval(rate: &str) -> Option<Duration> {
    let (number, unit) = rate.split_once('/')?;
    let unit = match unit {
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        "h" => Duration::from_secs(3600),
        _ => return None,
    };
    unit.checked_div(number.parse().ok()?)
}

/// Where a workload was before it was evicted for the first time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Home {
    pub clusters: Vec<TargetCluster>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub replicas: i32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub affinity_name: String,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

impl Home {
    /// Home is where it is now.
    pub fn of(spec: &ResourceBindingSpec, status: &ResourceBindingStatus) -> Self {
        Home {
            clusters: spec.clusters.clone(),
            replicas: spec.replicas,
            affinity_name: status.scheduler_observed_affinity_name.clone(),
        }
    }

    fn has(&self, cluster: &str) -> bool {
        self.clusters.iter().any(|target| target.name == cluster)
    }

    /// Whether these are the home clusters, all of them and no other.
    pub fn is_where(&self, targets: &[TargetCluster]) -> bool {
        targets.len() == self.clusters.len() && targets.iter().all(|target| self.has(&target.name))
    }

    /// What there is to do about a workload that is to go home, as far as its binding says.
    pub fn step(&self, spec: &ResourceBindingSpec) -> Step {
        let returning = spec.graceful_eviction_tasks.iter().any(|task| task.producer == eviction::PRODUCER_GOING_HOME);
        let leaving = spec.graceful_eviction_tasks.iter().any(|task| self.has(&task.from_cluster));
        match self.is_where(&spec.clusters) {
            true if returning => Step::Wait,
            true => Step::Arrived,
            false if returning || leaving => Step::Wait,
            false => Step::Away,
        }
    }

    /// Whether nothing at a home cluster keeps the workload away.
    pub fn is_open(cluster: &Cluster, tolerations: &[Toleration]) -> bool {
        let ready = conditions::is_true(&cluster.status.conditions, condition::READY);
        let taints = &cluster.spec.taints;
        let free = taints::first_untolerated(taints, tolerations, taints::keeps_away).is_none();
        ready && free && cluster.metadata.deletion_timestamp.is_none()
    }

    /// The binding as it is when it is on its way: what is not home is being left, and everything is decided anew.
    pub fn on_the_way(&self, spec: &ResourceBindingSpec, purge: &PurgeMode, now: Timestamp) -> ResourceBindingSpec {
        let mut going = spec.clone();
        going.clusters.retain(|target| self.has(&target.name));
        for target in spec.clusters.iter().filter(|target| !self.has(&target.name) && !spec.evicts(&target.name)) {
            going.graceful_eviction_tasks.push(GracefulEvictionTask {
                from_cluster: target.name.clone(),
                purge_mode: Some(purge.clone()),
                replicas: (target.replicas > 0).then_some(target.replicas),
                reason: eviction::REASON_RETURN_HOME.to_owned(),
                producer: eviction::PRODUCER_GOING_HOME.to_owned(),
                creation_timestamp: Some(Time(now)),
                ..GracefulEvictionTask::default()
            });
        }
        going.reschedule_triggered_at = Some(Time(now));
        going
    }
}

/// What there is to do about a workload that is to go home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It is somewhere else, and may go.
    Away,
    /// It is leaving, or on its way.
    Wait,
    Arrived,
}
