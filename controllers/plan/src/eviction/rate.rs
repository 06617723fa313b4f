//! Eviction rate of the taint manager. Karmada limits the rate of each of its two queues. Safe evictions additionally
//! slow down and halt for clusters that are not Ready, if many clusters are not ready or the control plane itself is
//! suspected to be at fault. Evictions from Ready clusters (drains by an administrator) are not affected.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use crowsnest_api::constants::condition;
use crowsnest_apimachinery::taints;
use crowsnest_apimachinery::unstructured;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Deserialize;
use serde_json::Value;

use crate::conditions;

/// State of a cluster that determines the rate of evictions.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterEvictionState {
    /// Status of the `Ready` condition. `None` before the first probe.
    pub ready: Option<bool>,
    /// True if its readiness is doubted.
    pub is_doubted: bool,
    /// Its NoExecute taints.
    pub taints: Vec<Taint>,
    /// True if the Cluster is being deleted.
    pub is_terminating: bool,
    /// True if its condition `EvictionsHalted` is set.
    pub has_halt_condition: bool,
}

impl ClusterEvictionState {
    /// Reads the state from a Cluster.
    pub fn from_cluster(cluster: &Value) -> Result<Self, serde_json::Error> {
        let read = |path: &[&str]| unstructured::at(cluster, path).unwrap_or(&Value::Null);
        let cluster_conditions =
            Option::<Vec<Condition>>::deserialize(read(&["status", "conditions"]))?.unwrap_or_default();
        let taints = Option::<Vec<Taint>>::deserialize(read(&["spec", "taints"]))?.unwrap_or_default();
        let signals = conditions::find(&cluster_conditions, condition::HEALTH_SIGNALS);
        Ok(ClusterEvictionState {
            ready: conditions::find(&cluster_conditions, condition::READY).map(|ready| ready.status == "True"),
            is_doubted: signals.is_some_and(|signals| {
                signals.status == "False" && signals.reason == condition::HEALTH_SIGNALS_DOUBTED
            }),
            taints: taints.into_iter().filter(|taint| taint.effect == taints::NO_EXECUTE).collect(),
            is_terminating: unstructured::is_terminating(cluster),
            has_halt_condition: conditions::is_true(&cluster_conditions, condition::EVICTIONS_HALTED),
        })
    }

    /// True if the cluster has NoExecute taints.
    pub fn has_no_execute_taint(&self) -> bool {
        !self.taints.is_empty()
    }

    pub fn is_ready(&self) -> bool {
        self.ready == Some(true)
    }

    /// True if its condition `EvictionsHalted` should be set.
    pub fn is_halted(&self, eviction_rate: &EvictionRate) -> bool {
        matches!(eviction_rate, EvictionRate::Halted(_))
            && self.has_no_execute_taint()
            && !self.is_ready()
            && !self.is_terminating
    }
}

/// Thresholds for the share of the fleet that is not ready, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NotReadyThresholds {
    /// Above this share, evictions are halted.
    pub halted: f64,
    /// Above this share, the secondary rate applies.
    pub slow: f64,
}

impl Default for NotReadyThresholds {
    fn default() -> Self {
        NotReadyThresholds { halted: 0.55, slow: 0.3 }
    }
}

/// Eviction rate for clusters that are not Ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictionRate {
    /// The full rate applies.
    Full,
    /// The secondary rate applies.
    Slow,
    /// No evictions are started.
    Halted(Halt),
}

/// Reason why evictions from clusters that are not Ready are halted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Halt {
    /// The readiness of a cluster is doubted.
    Doubted,
    /// Too large a share of the fleet is not ready.
    NotReady { not_ready: usize, clusters: usize },
}

impl Halt {
    /// Reason of the condition `EvictionsHalted`.
    pub fn reason(&self) -> &'static str {
        match self {
            Halt::Doubted => condition::EVICTIONS_HALTED_DOUBTED,
            Halt::NotReady { .. } => condition::EVICTIONS_HALTED_FLEET_NOT_READY,
        }
    }

    /// Message of the condition `EvictionsHalted`.
    pub fn message(&self) -> String {
        let cause = match self {
            Halt::Doubted => "the fault is probably on the control plane's side".to_owned(),
            Halt::NotReady { not_ready, clusters } => format!("{not_ready} of {clusters} clusters are not ready"),
        };
        format!("evictions from clusters that are not ready are halted: {cause}")
    }
}

/// Rate for the fleet. A single cluster that is not ready is a normal failover; with two or more, their share decides.
/// Clusters that were never probed, or that are being deleted, are ignored.
pub fn eviction_rate<'a>(
    fleet: impl IntoIterator<Item = &'a ClusterEvictionState>,
    thresholds: &NotReadyThresholds,
) -> EvictionRate {
    let (mut clusters, mut not_ready, mut doubted) = (0_usize, 0_usize, false);
    for state in fleet.into_iter().filter(|state| !state.is_terminating) {
        doubted |= state.is_doubted;
        clusters += usize::from(state.ready.is_some());
        not_ready += usize::from(state.ready == Some(false));
    }
    let is_over = |share: f64| not_ready >= 2 && not_ready as f64 > share * clusters as f64;
    match doubted {
        true => EvictionRate::Halted(Halt::Doubted),
        false if is_over(thresholds.halted) => EvictionRate::Halted(Halt::NotReady { not_ready, clusters }),
        false if is_over(thresholds.slow) => EvictionRate::Slow,
        false => EvictionRate::Full,
    }
}

/// Maximum time between two evictions, even for a configured rate of 0, as in Karmada.
const MAX_INTERVAL: Duration = Duration::from_secs(1800);

/// A token bucket with reservations: each caller receives the time at which it may proceed.
#[derive(Debug, Clone)]
pub struct Bucket {
    /// Time between two tokens.
    interval: Duration,
    /// Time by which a token may be used early: the interval times the burst minus one.
    tolerance: Duration,
    /// Time at which the bucket is full again. `None` if no token was reserved yet.
    full_at: Option<Instant>,
}

impl Bucket {
    /// A bucket with `rate` tokens per second and a burst.
    pub fn new(rate: f64, burst: u32) -> Self {
        let interval = Duration::try_from_secs_f64(1.0 / rate).unwrap_or(MAX_INTERVAL).min(MAX_INTERVAL);
        Bucket { interval, tolerance: interval.saturating_mul(burst.saturating_sub(1)), full_at: None }
    }

    /// Reserves a token. Returns the time from which it is valid.
    pub fn reserve(&mut self, now: Instant) -> Instant {
        let full_at = self.full_at.filter(|full_at| *full_at > now).unwrap_or(now);
        self.full_at = full_at.checked_add(self.interval);
        full_at.checked_sub(self.tolerance).filter(|at| *at > now).unwrap_or(now)
    }
}

/// A rate limiter: a token bucket, and the keys that wait for their token.
#[derive(Debug, Clone)]
pub struct RateLimiter<K> {
    bucket: Bucket,
    /// Time from which the reserved token of each key is valid.
    waiting: HashMap<K, Instant>,
}

impl<K: Hash + Eq + Clone> RateLimiter<K> {
    pub fn new(bucket: Bucket) -> Self {
        RateLimiter { bucket, waiting: HashMap::new() }
    }

    /// Takes the key's token if it is valid already; otherwise returns the remaining wait.
    pub fn take(&mut self, key: &K, now: Instant) -> Result<(), Duration> {
        let at = match self.waiting.get(key) {
            Some(at) => *at,
            None => self.bucket.reserve(now),
        };
        match at.checked_duration_since(now).filter(|wait| !wait.is_zero()) {
            None => {
                self.waiting.remove(key);
                Ok(())
            }
            Some(wait) => {
                self.waiting.insert(key.clone(), at);
                Err(wait)
            }
        }
    }

    /// Reserves another token without waiting for it, for a workload that is evicted together with the current key.
    pub fn spend(&mut self, now: Instant) {
        self.bucket.reserve(now);
    }

    /// Removes a waiting key.
    pub fn forget(&mut self, key: &K) {
        self.waiting.remove(key);
    }

    /// Replaces the bucket. Returns the keys that were waiting.
    pub fn replace_bucket(&mut self, bucket: Bucket) -> Vec<K> {
        self.bucket = bucket;
        std::mem::take(&mut self.waiting).into_keys().collect()
    }
}

/// Eviction rates (`--resource-eviction-rate`, `--secondary-resource-eviction-rate`), in evictions per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub full: f64,
    pub slow: f64,
}

/// Number of workers in Karmada, each of which waits after an eviction.
const KARMADA_WORKERS: u32 = 3;

impl Rates {
    /// A bucket with the combined rate of Karmada's workers.
    pub fn karmada_bucket(&self) -> Bucket {
        let rate = if self.full > 0.0 { self.full } else { 1.0 / MAX_INTERVAL.as_secs_f64() };
        Bucket::new(rate * f64::from(KARMADA_WORKERS), KARMADA_WORKERS)
    }

    /// A bucket with the rate that the state of the fleet allows, and a burst of one second. Halts are not considered.
    pub fn safe_bucket(&self, eviction_rate: &EvictionRate) -> Bucket {
        let rate = if *eviction_rate == EvictionRate::Slow { self.slow.min(self.full) } else { self.full };
        Bucket::new(rate, rate.clamp(1.0, 1000.0) as u32)
    }
}
