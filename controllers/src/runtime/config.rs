//! Configuration of the controllers. `Default` has Karmada's values; the conformance profile has shorter periods.

use std::time::Duration;

use crate::estimator::Estimators;
use crowsnest_api::policy::PurgeMode;

use crate::runtime::Selection;
use crate::runtime::clock::Clock;
use crate::runtime::write_fence::Fence;
use crowsnest_plan::autoscaling::replicas::ReplicaCalculator;
use crowsnest_plan::eviction::Safety;
use crowsnest_plan::eviction::rate::Rates;
use crowsnest_plan::gates::Gates;
use crowsnest_plan::propagation::skipped::{self, SkippedApis, SkippedNamespaces};
use crowsnest_plan::scheduling::Plugins;

/// Periods and timeouts.
#[derive(Debug, Clone)]
pub struct Periods {
    /// Period of the status collection of a member.
    pub cluster_status: Duration,
    /// Time for which the health check of a member must succeed before the member is ready again.
    pub cluster_success_threshold: Duration,
    /// Time for which the health check of a member must fail before the member is not ready.
    pub cluster_failure_threshold: Duration,
    /// Period of checking the Leases of agents that report the status of their cluster.
    pub cluster_monitor: Duration,
    /// Time without a renewed Lease after which the cluster's status is Unknown.
    pub cluster_monitor_grace: Duration,
    /// Grace period of a cluster whose agent has not reported yet.
    pub cluster_startup_grace: Duration,
    /// Timeout of a graceful eviction whose replacement does not become healthy.
    pub graceful_eviction_timeout: Duration,
    /// Period of the descheduler.
    pub descheduling: Duration,
    /// Time for which a pod must be unschedulable before the descheduler moves its replica to another cluster.
    pub unschedulable_threshold: Duration,
    /// Period of the recount of a quota's usage.
    pub quota_sync: Duration,
    /// Period of the evaluation of a FederatedHPA's metrics.
    pub autoscaling_sync: Duration,
    /// Downscale stabilization window of a FederatedHPA whose behavior has none.
    pub downscale_stabilization: Duration,
    /// Period of the full resync.
    pub full_resync: Duration,
    /// Period of the discovery of the control plane.
    pub discovery: Duration,
}

impl Default for Periods {
    fn default() -> Self {
        Periods {
            cluster_status: Duration::from_secs(10),
            cluster_success_threshold: Duration::from_secs(30),
            cluster_failure_threshold: Duration::from_secs(30),
            cluster_monitor: Duration::from_secs(5),
            cluster_monitor_grace: Duration::from_secs(40),
            cluster_startup_grace: Duration::from_secs(60),
            graceful_eviction_timeout: Duration::from_secs(600),
            descheduling: Duration::from_secs(120),
            unschedulable_threshold: Duration::from_secs(300),
            quota_sync: Duration::from_secs(300),
            autoscaling_sync: Duration::from_secs(15),
            downscale_stabilization: Duration::from_secs(300),
            full_resync: Duration::from_secs(600),
            discovery: Duration::from_secs(30),
        }
    }
}

/// Numbers of keys that controllers reconcile concurrently.
#[derive(Debug, Clone)]
pub struct Workers {
    pub templates: usize,
    pub bindings: usize,
    pub scheduling: usize,
    /// Works of all members together. One member occupies at most half of them.
    pub works: usize,
    /// Every other controller.
    pub others: usize,
}

impl Default for Workers {
    fn default() -> Self {
        Workers { templates: 16, bindings: 32, scheduling: 16, works: 64, others: 4 }
    }
}

/// Configuration of the controllers.
#[derive(Debug, Clone)]
pub struct Config {
    pub gates: Gates,
    pub controllers: Selection,
    pub periods: Periods,
    pub workers: Workers,
    /// Bindings with another scheduler name are ignored.
    pub scheduler_name: String,
    /// Filters and scores of the scheduler.
    pub plugins: Plugins,
    pub propagate_empty_workloads: bool,
    /// Scheduler estimators that are queried in addition to the built-in estimates.
    pub estimators: Option<Estimators>,
    /// APIs whose objects are never claimed by a policy. They may still be dependencies of others.
    pub skipped_apis: SkippedApis,
    /// Namespaces that are never propagated, in addition to the reserved ones.
    pub skipped_namespaces: SkippedNamespaces,
    /// Enables the eviction of bindings by NoExecute taints.
    pub no_execute_taint_eviction: bool,
    pub no_execute_purge_mode: PurgeMode,
    pub failover_safety: Safety,
    /// Share of clusters (0 to 1) that are not ready, above which evictions halt and the simultaneous loss of clusters
    /// is doubted.
    pub unhealthy_cluster_threshold: f64,
    /// Evictions by taints per second. `None`: the default of `failover_safety`.
    pub eviction_rate: Option<f64>,
    /// Evictions by taints per second while many clusters are not ready. Karmada has no such limit.
    pub secondary_eviction_rate: f64,
    /// Lets ClusterTaintPolicies add NoExecute taints. Read by admission.
    pub allow_no_execute_taint_policy: bool,
    /// Calculation of replicas from pod metrics, for FederatedHPAs.
    pub replica_calculator: ReplicaCalculator,
    /// Adds UID and extra to impersonation in members, which requires a ClusterRole in addition to Karmada's.
    pub impersonate_uid_and_extra: bool,
    /// Maximum size of the decoded objects, and of the pending writes, in bytes each.
    pub max_decoded_bytes: usize,
    /// Clock of the controllers.
    pub clock: Clock,
    /// Write fence of the leader.
    pub fence: Fence,
}

impl Default for Config {
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "a constant expression, compiled in every test of the controllers")]
        let skipped_namespaces =
            SkippedNamespaces::new([skipped::DEFAULT_SKIPPED_NAMESPACES]).expect("a valid expression");
        Config {
            gates: Gates::default(),
            controllers: Selection::default(),
            periods: Periods::default(),
            workers: Workers::default(),
            scheduler_name: "default-scheduler".to_owned(),
            plugins: Plugins::default(),
            propagate_empty_workloads: false,
            estimators: None,
            skipped_apis: SkippedApis::default(),
            skipped_namespaces,
            no_execute_taint_eviction: false,
            no_execute_purge_mode: PurgeMode::Gracefully,
            failover_safety: Safety::default(),
            unhealthy_cluster_threshold: 0.55,
            eviction_rate: None,
            secondary_eviction_rate: 1.0,
            allow_no_execute_taint_policy: false,
            replica_calculator: ReplicaCalculator::default(),
            impersonate_uid_and_extra: true,
            max_decoded_bytes: 32 << 20,
            clock: Clock::default(),
            fence: Fence::default(),
        }
    }
}

impl Config {
    /// True if NoExecute taints evict bindings: both the gate and the flag must be set.
    pub fn evicts_by_taint(&self) -> bool {
        self.gates.failover && self.no_execute_taint_eviction
    }

    pub fn eviction_rates(&self) -> Rates {
        let default_rate = match self.failover_safety {
            Safety::Safe => 100.0,
            Safety::Karmada => 0.5,
        };
        Rates { full: self.eviction_rate.unwrap_or(default_rate), slow: self.secondary_eviction_rate }
    }

    /// The configuration of the profile `conformance`, with which scenarios recorded from Karmada are compared: all
    /// feature gates and controllers are enabled, with short periods.
    pub fn conformance() -> Self {
        let second = Duration::from_secs(1);
        Config {
            gates: Gates::all(),
            controllers: Selection::all(),
            periods: Periods {
                cluster_status: 3 * second,
                cluster_success_threshold: 4 * second,
                cluster_failure_threshold: 4 * second,
                ..Periods::default()
            },
            no_execute_taint_eviction: true,
            eviction_rate: Some(50.0),
            allow_no_execute_taint_policy: true,
            impersonate_uid_and_extra: false,
            ..Config::default()
        }
    }
}
