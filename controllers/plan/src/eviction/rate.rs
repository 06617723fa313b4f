//! How fast the taint manager evicts. Karmada paces each of its two queues; safe evictions are paced and, when most of the
//! fleet seems dead or we doubt ourselves, halted: for clusters that are not Ready. What an administrator drains goes.

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

/// What decides about evictions from a cluster, and from all others.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// `None` while nobody has looked.
    pub ready: Option<bool>,
    /// We doubt what we see of it.
    pub doubted: bool,
    /// Its taints that evict.
    pub taints: Vec<Taint>,
    /// It is going.
    pub leaving: bool,
    /// It shows that its evictions are halted.
    pub shows_halt: bool,
}

impl Standing {
    /// As its Cluster says.
    pub fn of(cluster: &Value) -> Result<Self, serde_json::Error> {
        let read = |path: &[&str]| unstructured::at(cluster, path).unwrap_or(&Value::Null);
        let shown = Option::<Vec<Condition>>::deserialize(read(&["status", "conditions"]))?.unwrap_or_default();
        let taints = Option::<Vec<Taint>>::deserialize(read(&["spec", "taints"]))?.unwrap_or_default();
        let signals = conditions::find(&shown, condition::HEALTH_SIGNALS);
        Ok(Standing {
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

    /// Whether it has to show that its evictions are halted.
    pub fn is_halted(&self, pace: &Pace) -> bool {
        matches!(pace, Pace::Halted(_)) && self.evicts() && !self.is_ready() && !self.leaving
    }
}

/// Shares of the fleet that are not ready.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Over this share nothing is evicted.
    pub halted: f64,
    /// Over this share evictions go at the secondary rate.
    pub slow: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { halted: 0.55, slow: 0.3 }
    }
}

/// How evictions from clusters that are not Ready go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pace {
    Full,
    Slow,
    Halted(Halt),
}

/// Why nothing is evicted from clusters that are not Ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Halt {
    Doubted,
    NotReady { not_ready: usize, clusters: usize },
}

impl Halt {
    /// The reason of the condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Halt::Doubted => condition::EVICTIONS_HALTED_DOUBTED,
            Halt::NotReady { .. } => condition::EVICTIONS_HALTED_FLEET_NOT_READY,
        }
    }

    pub fn message(&self) -> String {
        let why = match self {
            Halt::Doubted => "the fault is probably on this side".to_owned(),
            Halt::NotReady { not_ready, clusters } => format!("{not_ready} of {clusters} clusters are not ready"),
        };
        format!("nothing is evicted from clusters that are not ready: {why}")
    }
}

/// One cluster that is not ready is what failover is for; of two or more their share counts. Clusters that nobody has looked
/// at yet, or that leave, count neither way.
pub fn pace<'a>(fleet: impl IntoIterator<Item = &'a Standing>, limits: &Limits) -> Pace {
    let (mut clusters, mut not_ready, mut doubted) = (0_usize, 0_usize, false);
    for standing in fleet.into_iter().filter(|standing| !standing.leaving) {
        doubted |= standing.doubted;
        clusters += usize::from(standing.ready.is_some());
        not_ready += usize::from(standing.ready == Some(false));
    }
    let over = |share: f64| not_ready >= 2 && not_ready as f64 > share * clusters as f64;
    match doubted {
        true => Pace::Halted(Halt::Doubted),
        false if over(limits.halted) => Pace::Halted(Halt::NotReady { not_ready, clusters }),
        false if over(limits.slow) => Pace::Slow,
        false => Pace::Full,
    }
}

/// The slowest there is, also where a rate of 0 was asked for: one in half an hour, as in Karmada.
const SLOWEST: Duration = Duration::from_secs(1800);

/// A token bucket that gives its tokens away in advance: each who asks is told when it may go.
#[derive(Debug, Clone)]
pub struct Bucket {
    /// Between two tokens.
    interval: Duration,
    /// What may go at once after a rest, less one, in time.
    tolerance: Duration,
    /// When the bucket would be full again, if everybody waited for whole intervals.
    full: Option<Instant>,
}

impl Bucket {
    /// So many a second, and so many at once after a rest.
    pub fn new(rate: f64, burst: u32) -> Self {
        let interval = Duration::try_from_secs_f64(1.0 / rate).unwrap_or(SLOWEST).min(SLOWEST);
        Bucket { interval, tolerance: interval.saturating_mul(burst.saturating_sub(1)), full: None }
    }

    /// When whoever asks now may go.
    pub fn reserve(&mut self, now: Instant) -> Instant {
        let full = self.full.filter(|full| *full > now).unwrap_or(now);
        self.full = full.checked_add(self.interval);
        full.checked_sub(self.tolerance).filter(|at| *at > now).unwrap_or(now)
    }
}

/// A bucket and those it has told to come later.
#[derive(Debug, Clone)]
pub struct Turns<K> {
    bucket: Bucket,
    later: HashMap<K, Instant>,
}

impl<K: Hash + Eq + Clone> Turns<K> {
    pub fn new(bucket: Bucket) -> Self {
        Turns { bucket, later: HashMap::new() }
    }

    /// Whether it is the key's turn, or how long it waits for it. Whoever comes in time has used its turn up.
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

    /// One more goes with the key whose turn it is.
    pub fn spend(&mut self, now: Instant) {
        self.bucket.reserve(now);
    }

    /// It does not wait any more.
    pub fn forget(&mut self, key: &K) {
        self.later.remove(key);
    }

    /// Who waits, and waits no longer: the bucket is another one from now on.
    pub fn restart(&mut self, bucket: Bucket) -> Vec<K> {
        self.bucket = bucket;
        std::mem::take(&mut self.later).into_keys().collect()
    }
}

/// How fast evictions go (`--resource-eviction-rate`, `--secondary-resource-eviction-rate`), in evictions a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub full: f64,
    pub slow: f64,
}

/// Each of Karmada's workers pauses after an eviction.
const KARMADAS_WORKERS: u32 = 3;

impl Rates {
    /// What Karmada's workers come to together.
    pub fn karmada(&self) -> Bucket {
        let rate = if self.full > 0.0 { self.full } else { 1.0 / SLOWEST.as_secs_f64() };
        Bucket::new(rate * f64::from(KARMADAS_WORKERS), KARMADAS_WORKERS)
    }

    /// As the fleet allows; a second's worth at once.
    pub fn safe(&self, pace: &Pace) -> Bucket {
        let rate = if *pace == Pace::Slow { self.slow.min(self.full) } else { self.full };
        Bucket::new(rate, rate.clamp(1.0, 1000.0) as u32)
    }
}
