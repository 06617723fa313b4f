//! Rate limits of evictions: state of the fleet, order of evictions, and bindings that wait while evictions are
//! halted.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use crowsnest_api::keys::BindingKey;
use parking_lot::Mutex;

use crate::runtime::config::Config;
use crowsnest_plan::eviction::Safety;
use crowsnest_plan::eviction::rate::{self, ClusterEvictionState, EvictionRate, Limits, RateLimiter, Rates};

pub struct Gate {
    safety: Safety,
    /// True if evictions by taint are disabled.
    idle: bool,
    rates: Rates,
    limits: Limits,
    state: Mutex<State>,
}

struct State {
    fleet: BTreeMap<String, ClusterEvictionState>,
    eviction_rate: EvictionRate,
    /// Limit of ResourceBindings, or of all bindings.
    limiter: RateLimiter<BindingKey>,
    /// Limit of ClusterResourceBindings, which Karmada limits separately.
    cluster_limiter: RateLimiter<BindingKey>,
    /// Bindings that wait while evictions are halted.
    held: HashSet<BindingKey>,
}

/// Effects of a changed Cluster.
#[derive(Debug, Default, PartialEq)]
pub struct Learned {
    /// Set if the change affects evictions.
    pub changed: Option<Mattered>,
    /// Waiting bindings that must be reconciled.
    pub woken: Vec<BindingKey>,
    /// Clusters whose condition `EvictionsHalted` must be updated.
    pub shows: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mattered {
    /// True if the cluster has or had NoExecute taints.
    pub evicts: bool,
}

/// Decision about an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Go,
    Later(Duration),
    /// Halted until the fleet recovers.
    Halted,
}

impl Gate {
    pub fn new(config: &Config) -> Self {
        let safety = config.failover_safety;
        let rates = config.eviction_rates();
        let bucket = || match safety {
            Safety::Safe => rates.safe(&EvictionRate::Full),
            Safety::Karmada => rates.karmada(),
        };
        let state = State {
            fleet: BTreeMap::new(),
            eviction_rate: EvictionRate::Full,
            limiter: RateLimiter::new(bucket()),
            cluster_limiter: RateLimiter::new(bucket()),
            held: HashSet::new(),
        };
        let idle = !config.evicts_by_taint();
        let limits = Limits { halted: config.unhealthy_cluster_threshold, ..Limits::default() };
        Gate { safety, idle, rates, limits, state: Mutex::new(state) }
    }

    /// Updates the state of a cluster, or removes it (`None`).
    pub fn learn(&self, name: &str, standing: Option<ClusterEvictionState>) -> Learned {
        let mut state = self.state.lock();
        let old = match standing.clone() {
            Some(standing) => state.fleet.insert(name.to_owned(), standing),
            None => state.fleet.remove(name),
        };
        if old == standing {
            return Learned::default();
        }
        let evicts = old.iter().chain(&standing).any(ClusterEvictionState::evicts);
        let mut learned = Learned { changed: Some(Mattered { evicts }), ..Learned::default() };
        let halts = self.safety == Safety::Safe && !self.idle;
        let eviction_rate =
            if halts { rate::eviction_rate(state.fleet.values(), &self.limits) } else { EvictionRate::Full };
        let was = std::mem::replace(&mut state.eviction_rate, eviction_rate);
        if std::mem::discriminant(&was) != std::mem::discriminant(&state.eviction_rate) {
            let bucket = self.rates.safe(&state.eviction_rate);
            learned.woken = state.limiter.restart(bucket);
            learned.woken.extend(std::mem::take(&mut state.held));
        }
        let misleads = |(_, standing): &(&String, &ClusterEvictionState)| {
            standing.is_halted(&state.eviction_rate) != standing.shows_halt
        };
        learned.shows = state.fleet.iter().filter(misleads).map(|(name, _)| name.clone()).collect();
        learned
    }

    /// Known clusters that no longer exist.
    pub fn gone(&self, is_there: impl Fn(&str) -> bool) -> Vec<String> {
        let state = self.state.lock();
        state.fleet.keys().filter(|name| !is_there(name)).cloned().collect()
    }

    pub fn eviction_rate(&self) -> EvictionRate {
        self.state.lock().eviction_rate.clone()
    }

    /// True if a cluster has NoExecute taints.
    pub fn evicts(&self, cluster: &str) -> bool {
        self.state.lock().fleet.get(cluster).is_some_and(ClusterEvictionState::evicts)
    }

    /// Clusters with NoExecute taints.
    pub fn evicting(&self) -> Vec<String> {
        let state = self.state.lock();
        state.fleet.iter().filter(|(_, standing)| standing.evicts()).map(|(name, _)| name.clone()).collect()
    }

    /// True if evictions from a cluster are rate-limited.
    pub fn guards(&self, ready: bool) -> bool {
        self.safety == Safety::Karmada || !ready
    }

    /// Requests the eviction of a binding from several clusters at once.
    pub fn ask(&self, key: &BindingKey, clusters: usize, now: Instant) -> Verdict {
        let mut state = self.state.lock();
        if matches!(state.eviction_rate, EvictionRate::Halted(_)) {
            state.held.insert(key.clone());
            return Verdict::Halted;
        }
        let apart = self.safety == Safety::Karmada && key.is_cluster_scoped();
        let limiter = if apart { &mut state.cluster_limiter } else { &mut state.limiter };
        match limiter.take(key, now) {
            Ok(()) => {
                (1..clusters).for_each(|_| limiter.spend(now));
                Verdict::Go
            }
            Err(wait) => Verdict::Later(wait),
        }
    }

    /// Removes a binding that no longer waits.
    pub fn forget(&self, key: &BindingKey) {
        let mut state = self.state.lock();
        state.limiter.forget(key);
        state.cluster_limiter.forget(key);
        state.held.remove(key);
    }
}
