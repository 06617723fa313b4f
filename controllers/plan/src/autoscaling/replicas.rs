//! Replica calculation per metric: Kubernetes' algorithm over the pods of all clusters. The result is divided by
//! the calibration: the number of replicas that the clusters run per replica of the template.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::pods::{Pod, PodKey, PodUsage, Sample, assign_samples};

/// Calculates the required replicas from metrics. `Default` has Kubernetes' settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReplicaCalculator {
    /// A usage ratio within this distance of 1 changes nothing.
    pub tolerance: f64,
    /// CPU samples within this time after a pod's start count only once the pod is ready.
    pub cpu_initialization: SignedDuration,
    /// A pod that became unready within this time after its start counts as never having been ready.
    pub initial_readiness_delay: SignedDuration,
}

impl Default for ReplicaCalculator {
    fn default() -> Self {
        ReplicaCalculator {
            tolerance: 0.1,
            cpu_initialization: SignedDuration::from_mins(5),
            initial_readiness_delay: SignedDuration::from_secs(30),
        }
    }
}

/// The workload to scale.
#[derive(Debug, Clone, Copy)]
pub struct Workload<'a> {
    /// Replicas of the template.
    pub replicas: i32,
    /// Sum of the replicas that the clusters report.
    pub status_replicas: i32,
    /// Replicas that the clusters are to run per replica of the template.
    pub calibration: f64,
    pub pods: &'a [Pod],
}

/// Replicas that one metric proposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaCount {
    pub replicas: i32,
    /// Percentage of the requests.
    pub utilization: Option<i32>,
    /// Milli-units per pod, or the value of an object metric.
    pub usage: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaCountError {
    #[error("no pods returned by selector while calculating replica count")]
    NoPods,
    #[error("did not receive metrics for any ready pods")]
    NoMetrics,
    #[error("no metrics returned matched known pods")]
    NoKnownPods,
    #[error("missing request for {resource} in container {container} of Pod {pod}")]
    NoRequest { resource: String, container: String, pod: String },
}

/// Pods by state. Unready pods are those whose sample does not count yet, missing ones have no sample.
#[derive(Debug, Default)]
struct PodGroups {
    ready: usize,
    unready: BTreeSet<PodKey>,
    missing: BTreeSet<PodKey>,
    ignored: BTreeSet<PodKey>,
}

type UsageByPod = BTreeMap<PodKey, PodUsage>;

/// Usage, and its ratio to the target.
#[derive(Debug, Clone, Copy)]
struct MeasuredUsage {
    ratio: f64,
    utilization: Option<i32>,
    usage: i64,
}

/// Target usage of pods.
enum UsageTarget {
    /// Percentage of their requests.
    Utilization { percent: i32, requests: BTreeMap<PodKey, i64> },
    /// Average value.
    Usage(i64),
}

impl ReplicaCalculator {
    /// Replicas for a target utilization of a resource, in one container or in all.
    pub fn for_utilization(
        &self,
        samples: &[Sample],
        resource: &str,
        container: Option<&str>,
        percent: i32,
        workload: &Workload<'_>,
        now: Timestamp,
    ) -> Result<ReplicaCount, ReplicaCountError> {
        let requests = requests(workload.pods, resource, container)?;
        self.calculate_by_pods(samples, resource, &UsageTarget::Utilization { percent, requests }, workload, now)
    }

    /// Replicas for a target average value. `resource` is empty for a metric that is not a resource.
    pub fn for_usage(
        &self,
        samples: &[Sample],
        resource: &str,
        target: i64,
        workload: &Workload<'_>,
        now: Timestamp,
    ) -> Result<ReplicaCount, ReplicaCountError> {
        self.calculate_by_pods(samples, resource, &UsageTarget::Usage(target), workload, now)
    }

    /// Replicas for the value of an object metric.
    pub fn for_value(
        &self,
        value: i64,
        target: i64,
        workload: &Workload<'_>,
    ) -> Result<ReplicaCount, ReplicaCountError> {
        let ratio = value as f64 / target as f64;
        let count = |replicas| ReplicaCount { replicas, utilization: None, usage: value };
        if workload.replicas == 0 {
            return Ok(count(round_up(ratio)));
        }
        if self.is_near(ratio) {
            return Ok(count(workload.replicas));
        }
        if workload.pods.is_empty() {
            return Err(ReplicaCountError::NoPods);
        }
        let ready = workload.pods.iter().filter(|pod| pod.is_running_and_ready()).count();
        Ok(count(round_up(ratio * ready as f64 / workload.calibration)))
    }

    /// Replicas for the value of an object metric averaged over pods. As in Karmada, the result is divided by the
    /// calibration twice when the replicas change.
    pub fn for_value_per_pod(&self, value: i64, target: i64, workload: &Workload<'_>) -> ReplicaCount {
        let (value, running) = (value as f64, f64::from(workload.status_replicas));
        let ratio = value / (target as f64 * running);
        let desired = match self.is_near(ratio) {
            true => running,
            false => (value / target as f64 / workload.calibration).ceil(),
        };
        let usage = if running == 0.0 { 0 } else { (value / running).ceil() as i64 };
        ReplicaCount { replicas: round_up(desired / workload.calibration), utilization: None, usage }
    }

    fn is_near(&self, ratio: f64) -> bool {
        (1.0 - ratio).abs() <= self.tolerance
    }

    fn calculate_by_pods(
        &self,
        samples: &[Sample],
        resource: &str,
        target: &UsageTarget,
        workload: &Workload<'_>,
        now: Timestamp,
    ) -> Result<ReplicaCount, ReplicaCountError> {
        if workload.pods.is_empty() {
            return Err(ReplicaCountError::NoPods);
        }
        let mut uses = assign_samples(samples, workload.pods);
        let groups = self.group_pods(workload.pods, &uses, resource, now);
        uses.retain(|key, _| !groups.ignored.contains(key) && !groups.unready.contains(key));
        if uses.is_empty() {
            return Err(ReplicaCountError::NoMetrics);
        }
        let measured = target.measure(&uses)?;
        let ratio = measured.ratio;
        let count = |replicas| ReplicaCount { replicas, utilization: measured.utilization, usage: measured.usage };
        let counts_unready = !groups.unready.is_empty() && ratio > 1.0;
        if !counts_unready && groups.missing.is_empty() {
            let desired = round_up(ratio * groups.ready as f64 / workload.calibration);
            return Ok(count(if self.is_near(ratio) { workload.replicas } else { desired }));
        }
        // Conservative estimate: pods without metrics count with their full usage when scaling down, and with zero when
        // scaling up; unready pods count with zero when scaling up.
        let nothing = |_: &PodKey| 0;
        if ratio < 1.0 {
            add_usage(&mut uses, &groups.missing, now, |key| target.full_usage(key));
        } else if ratio > 1.0 {
            add_usage(&mut uses, &groups.missing, now, nothing);
        }
        if counts_unready {
            add_usage(&mut uses, &groups.unready, now, nothing);
        }
        let conservative_ratio = target.measure(&uses)?.ratio;
        let reverses = (ratio < 1.0 && conservative_ratio > 1.0) || (ratio > 1.0 && conservative_ratio < 1.0);
        if self.is_near(conservative_ratio) || reverses {
            return Ok(count(workload.replicas));
        }
        let desired = round_up(conservative_ratio * uses.len() as f64 / workload.calibration);
        let reverses = (conservative_ratio < 1.0 && desired > workload.replicas)
            || (conservative_ratio > 1.0 && desired < workload.replicas);
        Ok(count(if reverses { workload.replicas } else { desired }))
    }

    fn group_pods(&self, pods: &[Pod], uses: &UsageByPod, resource: &str, now: Timestamp) -> PodGroups {
        let mut groups = PodGroups::default();
        for pod in pods {
            let key = || pod.key.clone();
            if pod.is_terminating || pod.phase == "Failed" {
                groups.ignored.insert(key());
            } else if pod.phase == "Pending" {
                groups.unready.insert(key());
            } else if let Some(used) = uses.get(&pod.key) {
                if resource == "cpu" && self.is_unready(pod, used, now) {
                    groups.unready.insert(key());
                } else {
                    groups.ready += 1;
                }
            } else {
                groups.missing.insert(key());
            }
        }
        groups
    }

    /// True if the pod's CPU sample reflects its start-up rather than its load.
    fn is_unready(&self, pod: &Pod, used: &PodUsage, now: Timestamp) -> bool {
        let (Some(readiness), Some(started_at)) = (&pod.readiness, pod.started_at) else { return true };
        let is_false = readiness.status == "False";
        match after(started_at, self.cpu_initialization) > now {
            true => is_false || used.at < after(readiness.since, used.window),
            false => is_false && after(started_at, self.initial_readiness_delay) > readiness.since,
        }
    }
}

impl UsageTarget {
    fn measure(&self, uses: &UsageByPod) -> Result<MeasuredUsage, ReplicaCountError> {
        match self {
            UsageTarget::Utilization { percent, requests } => {
                let used_and_requested = uses.iter().filter_map(|(key, used)| Some((used.value, *requests.get(key)?)));
                let (mut used, mut requested, mut pods) = (0_i128, 0_i128, 0_i128);
                for (value, request) in used_and_requested {
                    used += i128::from(value);
                    requested += i128::from(request);
                    pods += 1;
                }
                if requested == 0 {
                    return Err(ReplicaCountError::NoKnownPods);
                }
                let utilization = i32::try_from(used * 100 / requested).unwrap_or(i32::MAX);
                let ratio = f64::from(utilization) / f64::from(*percent);
                let usage = i64::try_from(used / pods).unwrap_or(i64::MAX);
                Ok(MeasuredUsage { ratio, utilization: Some(utilization), usage })
            }
            UsageTarget::Usage(target) => {
                let used: i128 = uses.values().map(|used| i128::from(used.value)).sum();
                let pods = i128::try_from(uses.len()).unwrap_or(i128::MAX);
                let usage = i64::try_from(used / pods.max(1)).unwrap_or(i64::MAX);
                Ok(MeasuredUsage { ratio: usage as f64 / *target as f64, utilization: None, usage })
            }
        }
    }

    /// The pod's usage at the target, or its request if that is higher.
    fn full_usage(&self, pod: &PodKey) -> i64 {
        match self {
            UsageTarget::Utilization { percent, requests } => {
                let request = requests.get(pod).copied().unwrap_or_default();
                request.saturating_mul(i64::from((*percent).max(100))) / 100
            }
            UsageTarget::Usage(target) => *target,
        }
    }
}

fn add_usage(uses: &mut UsageByPod, pods: &BTreeSet<PodKey>, at: Timestamp, value: impl Fn(&PodKey) -> i64) {
    let used = |key: &PodKey| PodUsage { value: value(key), at, window: SignedDuration::ZERO };
    uses.extend(pods.iter().map(|key| (key.clone(), used(key))));
}

/// Requests per pod. Every container must have a request.
fn requests(pods: &[Pod], resource: &str, container: Option<&str>) -> Result<BTreeMap<PodKey, i64>, ReplicaCountError> {
    let mut requests = BTreeMap::new();
    for pod in pods {
        let mut sum = 0_i64;
        for pod_container in
            pod.containers.iter().filter(|pod_container| container.is_none_or(|name| name == pod_container.name))
        {
            let Some(request) = pod_container.requests.get(resource) else {
                let (resource, container, pod) =
                    (resource.to_owned(), pod_container.name.clone(), pod.key.name.clone());
                return Err(ReplicaCountError::NoRequest { resource, container, pod });
            };
            sum = sum.saturating_add(*request);
        }
        requests.insert(pod.key.clone(), sum);
    }
    Ok(requests)
}

/// Rounds up. NaN becomes 0, and values out of range saturate.
fn round_up(replicas: f64) -> i32 {
    replicas.ceil() as i32
}

fn after(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}
