//! Eviction rate of the taint manager. Karmada limits the rate of each of its two queues. Safe evictions additionally
//! slow down and halt for clusters that are not Ready, if many clusters are not ready or the control plane itself is
//! suspected to be at fault. Evictions from Ready clusters (drains by an administrator) continue.

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
    pub doubted: bool,
    /// Its NoExecute taints.
    pub taints: Vec<Taint>,
    /// True if the Cluster is being deleted.
    pub leaving: bool,
    /// True if its condition `EvictionsHalted` is set.
    pub shows_halt: bool,
}

impl ClusterEvictionState {
    /// Reads the state from a Cluster.
    pub fn of(cluster: &Value) -> Result<Self, serde_json::Error> {
        let read = |path: &[&str]| unstructured::at(cluster, path).unwrap_or(&Value::Null);
        let shown = Option::<Vec<Condition>>::deserialize(read(&["status", "conditions"]))?.unwrap_or_default();
        let taints = Option::<Vec<Taint>>::deserialize(read(&["spec", "taints"]))?.unwrap_or_default();
        let signals = conditions::find(&shown, condition::HEALTH_SIGNALS);
        Ok(ClusterEvictionState {
            ready: conditions::find(&shown, condition::READY).map(|ready| ready.status == "True"),
            doubted: signals
                .is_some_and(|one| one.status == "False" && one.reason == condition::HEALTH_SIGNALS_DOUBTED),
            taints: taints.into_iter().filter(|taint| taint.effect == taints::NO_EXECUTE).collect(),
            leaving: unstructured::is_terminating(cluster),
            shows_halt: conditions::is_true(&shown, condition::EVICTIONS_HALTED),
        })
    }

    pub fn evicts(&self) -> bool {
        !self.taints.is_empty()
    }

    pub fn is_ready(&self) -> bool {
        self.ready == Some(true)
    }

    /// True if its condition `EvictionsHalted` should be set.
    pub fn is_halted(&self, eviction_rate: &EvictionRate) -> bool {
        matches!(eviction_rate, EvictionRate::Halted(_)) && self.evicts() && !self.is_ready() && !self.leaving
    }
}

/// Thresholds, as shares of the fleet that are not ready.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Above this share, evictions are halted.
    pub halted: f64,
    /// Above this share, the secondary rate applies.
    pub slow: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { halted: 0.55, slow: 0.3 }
    }
}

/// Eviction rate for clusters that are not Ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictionRate {
    Full,
    Slow,
    Halted(Halt),
}

/// Why evictions from clusters that are not Ready are halted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Halt {
    Doubted,
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

    pub fn message(&self) -> String {
        let why = match self {
            Halt::Doubted => "the fault is probably on the control plane's side".to_owned(),
            Halt::NotReady { not_ready, clusters } => format!("{not_ready} of {clusters} clusters are not ready"),
        };
        format!("evictions from clusters that are not ready are halted: {why}")
    }
}

/// Rate for the fleet. A single cluster that is not ready is a normal failover; with two or more, their share decides.
/// Clusters that were never probed, or that are being deleted, are ignored.
pub fn eviction_rate<'a>(fleet: impl IntoIterator<Item = &'a ClusterEvictionState>, limits: &Limits) -> EvictionRate {
    let (mut clusters, mut not_ready, mut doubted) = (0_usize, 0_usize, false);
    for standing in fleet.into_iter().filter(|standing| !standing.leaving) {
        doubted |= standing.doubted;
        clusters += usize::from(standing.ready.is_some());
        not_ready += usize::from(standing.ready == Some(false));
    }
    let over = |share: f64| not_ready >= 2 && not_ready as f64 > share * clusters as f64;
    match doubted {
        true => EvictionRate::Halted(Halt::Doubted),
        false if over(limits.halted) => EvictionRate::Halted(Halt::NotReady { not_ready, clusters }),
        false if over(limits.slow) => EvictionRate::Slow,
        false => EvictionRate::Full,
    }
}

/// Minimum rate, also for a configured rate of 0: one eviction in 30 minutes, as in Karmada.
const SLOWEST: Duration = Duration::from_secs(1800);

/// A token bucket with reservations: each caller receives the time at which it may proceed.
#[derive(Debug, Clone)]
pub struct Bucket {
    /// Time between two tokens.
    interval: Duration,
    /// Burst minus one, as time.
    tolerance: Duration,
    /// Time when the bucket is full again.
    full: Option<Instant>,
}

impl Bucket {
    /// A bucket with `rate` tokens per second and a burst.
    pub fn new(rate: f64, burst: u32) -> Self {
        let interval = Duration::try_from_secs_f64(1.0 / rate).unwrap_or(SLOWEST).min(SLOWEST);
        Bucket { interval, tolerance: interval.saturating_mul(burst.saturating_sub(1)), full: None }
    }

    /// Reserves a token. Returns when it is valid.
    pub fn reserve(&mut self, now: Instant) -> Instant {
        let full = self.full.filter(|full| *full > now).unwrap_or(now);
        self.full = full.checked_add(self.interval);
        full.checked_sub(self.tolerance).filter(|at| *at > now).unwrap_or(now)
    }
}

/// A rate limiter: a token bucket, and the keys that wait for their token.
#[derive(Debug, Clone)]
pub struct RateLimiter<K> {
    bucket: Bucket,
    later: HashMap<K, Instant>,
}

impl<K: Hash + Eq + Clone> RateLimiter<K> {
    pub fn new(bucket: Bucket) -> Self {
        RateLimiter { bucket, later: HashMap::new() }
    }

    /// Takes the key's token if it is valid already; otherwise returns the remaining wait.
    pub fn take(&mut self, key: &K, now: Instant) -> Result<(), Duration> {
        let at = match self.later.get(key) {
            Some(at) => *at,
            None => self.bucket.reserve(now),
        };
        match at.checked_duration_since(now).filter(|wait| !wait.is_zero()) {
            None => {
                self.later.remove(key);
                Ok(())
            }
            Some(wait) => {
                self.later.insert(key.clone(), at);
                Err(wait)
            }
        }
    }

    /// Takes another token for something that is evicted together with the current key.
    pub fn spend(&mut self, now: Instant) {
        self.bucket.reserve(now);
    }

    /// Removes a key from the waiting ones.
    pub fn forget(&mut self, key: &K) {
        self.later.remove(key);
    }

    /// Replaces the bucket. Returns the keys that were waiting.
    pub fn restart(&mut self, bucket: Bucket) -> Vec<K> {
        self.bucket = bucket;
        std::mem::take(&mut self.later).into_keys().collect()
    }
}

/// Eviction rates (`--resource-eviction-rate`, `--secondary-resource-eviction-rate`), in evictions per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub full: f64,
    pub slow: f64,
}

/// Number of workers in Karmada, each of which waits after an eviction.
const KARMADAS_WORKERS: u32 = 3;

impl Rates {
    /// Combined rate of Karmada's workers.
    pub fn karmada(&self) -> Bucket {
        let rate = if self.full > 0.0 { self.full } else { 1.0 / SLOWEST.as_secs_f64() };
        Bucket::new(rate * f64::from(KARMADAS_WORKERS), KARMADAS_WORKERS)
    }

    /// Rate that the state of the fleet allows, with a burst of one second.
    pub fn safe(&self, eviction_rate: &EvictionRate) -> Bucket {
        let rate = if *eviction_rate == EvictionRate::Slow { self.slow.min(self.full) } else { self.full };
        Bucket::new(rate, rate.clamp(1.0, 1000.0) as u32)
    }
}
