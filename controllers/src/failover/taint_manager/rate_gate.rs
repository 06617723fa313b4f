//! Rate limit of evictions by taint: derives the eviction rate from the state of the fleet, and records the bindings
//! that wait for the rate limit or until halted evictions resume.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use crowsnest_api::keys::BindingKey;
use parking_lot::Mutex;

use crate::runtime::config::Config;
use crowsnest_plan::eviction::Safety;
use crowsnest_plan::eviction::rate::{
    self, ClusterEvictionState, EvictionRate, NotReadyThresholds, RateLimiter, Rates,
};

/// Decides if and when bindings are evicted.
pub struct RateGate {
    safety: Safety,
    /// True if evictions by taint are disabled.
    is_disabled: bool,
    rates: Rates,
    thresholds: NotReadyThresholds,
    state: Mutex<State>,
}

struct State {
    fleet: BTreeMap<String, ClusterEvictionState>,
    eviction_rate: EvictionRate,
    /// Rate limiter of ResourceBindings, and with [`Safety::Safe`] also of ClusterResourceBindings.
    limiter: RateLimiter<BindingKey>,
    /// Rate limiter of ClusterResourceBindings with [`Safety::Karmada`], which limits them separately.
    cluster_limiter: RateLimiter<BindingKey>,
    /// Bindings that wait while evictions are halted.
    halted: HashSet<BindingKey>,
}

/// Effects of a changed Cluster.
#[derive(Debug, Default, PartialEq)]
pub struct ClusterUpdate {
    /// Set if the change affects evictions.
    pub eviction_change: Option<EvictionChange>,
    /// Waiting bindings that must be reconciled.
    pub resumed: Vec<BindingKey>,
    /// Clusters whose condition `EvictionsHalted` must be updated.
    pub outdated_conditions: Vec<String>,
}

/// Change of a cluster that affects evictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictionChange {
    /// True if the cluster has NoExecute taints now or had them before.
    pub has_taint: bool,
}

/// Decision about an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Evict,
    RetryAfter(Duration),
    /// Halted until the fleet recovers.
    Halted,
}

impl RateGate {
    pub fn new(config: &Config) -> Self {
        let safety = config.failover_safety;
        let rates = config.eviction_rates();
        let bucket = || match safety {
            Safety::Safe => rates.safe_bucket(&EvictionRate::Full),
            Safety::Karmada => rates.karmada_bucket(),
        };
        let state = State {
            fleet: BTreeMap::new(),
            eviction_rate: EvictionRate::Full,
            limiter: RateLimiter::new(bucket()),
            cluster_limiter: RateLimiter::new(bucket()),
            halted: HashSet::new(),
        };
        let is_disabled = !config.evicts_by_taint();
        let thresholds =
            NotReadyThresholds { halted: config.unhealthy_cluster_threshold, ..NotReadyThresholds::default() };
        RateGate { safety, is_disabled, rates, thresholds, state: Mutex::new(state) }
    }

    /// Updates the state of a cluster, or removes it (`None`).
    pub fn update_cluster(&self, name: &str, new: Option<ClusterEvictionState>) -> ClusterUpdate {
        let mut state = self.state.lock();
        let old = match new.clone() {
            Some(new) => state.fleet.insert(name.to_owned(), new),
            None => state.fleet.remove(name),
        };
        if old == new {
            return ClusterUpdate::default();
        }
        let has_taint = old.iter().chain(&new).any(ClusterEvictionState::has_no_execute_taint);
        let mut update =
            ClusterUpdate { eviction_change: Some(EvictionChange { has_taint }), ..ClusterUpdate::default() };
        let can_halt = self.safety == Safety::Safe && !self.is_disabled;
        let eviction_rate =
            if can_halt { rate::eviction_rate(state.fleet.values(), &self.thresholds) } else { EvictionRate::Full };
        let previous = std::mem::replace(&mut state.eviction_rate, eviction_rate);
        if std::mem::discriminant(&previous) != std::mem::discriminant(&state.eviction_rate) {
            let bucket = self.rates.safe_bucket(&state.eviction_rate);
            update.resumed = state.limiter.replace_bucket(bucket);
            update.resumed.extend(std::mem::take(&mut state.halted));
        }
        let is_condition_outdated = |(_, cluster): &(&String, &ClusterEvictionState)| {
            cluster.is_halted(&state.eviction_rate) != cluster.has_halt_condition
        };
        update.outdated_conditions =
            state.fleet.iter().filter(is_condition_outdated).map(|(name, _)| name.clone()).collect();
        update
    }

    /// Known clusters that no longer exist.
    pub fn deleted_clusters(&self, exists: impl Fn(&str) -> bool) -> Vec<String> {
        let state = self.state.lock();
        state.fleet.keys().filter(|name| !exists(name)).cloned().collect()
    }

    pub fn eviction_rate(&self) -> EvictionRate {
        self.state.lock().eviction_rate.clone()
    }

    /// True if a cluster has NoExecute taints.
    pub fn has_no_execute_taint(&self, cluster: &str) -> bool {
        self.state.lock().fleet.get(cluster).is_some_and(ClusterEvictionState::has_no_execute_taint)
    }

    /// Clusters with NoExecute taints.
    pub fn tainted_clusters(&self) -> Vec<String> {
        let state = self.state.lock();
        state.fleet.iter().filter(|(_, cluster)| cluster.has_no_execute_taint()).map(|(name, _)| name.clone()).collect()
    }

    /// True if evictions from a cluster are rate-limited; [`Safety::Safe`] exempts Ready clusters.
    pub fn is_rate_limited(&self, is_ready: bool) -> bool {
        self.safety == Safety::Karmada || !is_ready
    }

    /// Requests the eviction of a binding from a number of clusters at once.
    pub fn request_eviction(&self, key: &BindingKey, clusters: usize, now: Instant) -> Verdict {
        let mut state = self.state.lock();
        if matches!(state.eviction_rate, EvictionRate::Halted(_)) {
            state.halted.insert(key.clone());
            return Verdict::Halted;
        }
        let is_separate = self.safety == Safety::Karmada && key.is_cluster_scoped();
        let limiter = if is_separate { &mut state.cluster_limiter } else { &mut state.limiter };
        match limiter.take(key, now) {
            Ok(()) => {
                (1..clusters).for_each(|_| limiter.spend(now));
                Verdict::Evict
            }
            Err(wait) => Verdict::RetryAfter(wait),
        }
    }

    /// Removes a binding that no longer waits.
    pub fn forget(&self, key: &BindingKey) {
        let mut state = self.state.lock();
        state.limiter.forget(key);
        state.cluster_limiter.forget(key);
        state.halted.remove(key);
    }
}
