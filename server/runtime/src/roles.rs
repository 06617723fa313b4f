//! Starts and stops the roles that run against a control plane (fleet, cache, controllers, proxy) in dependency order, and reports their
//! health.

mod replica_notifications;
mod role_tasks;

use std::sync::{Arc, OnceLock};

use crowsnest_apimachinery::user::UserInfo;
use crowsnest_component_base::requests::RequestCounters;
use crowsnest_controllers::search::backend_stores::{BackendStoreMetrics, BackendStores};
use crowsnest_controllers::search::graph_sinks::{GraphSinkMetrics, GraphSinks};
use crowsnest_controllers::search::resource_registry::{self, Publishers, RegistryProgress};
use crowsnest_index::{CacheOptions, GlobalCache};
use crowsnest_members::{EndpointRules, Fleet, FleetOptions};
use crowsnest_proxy::Proxy;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::role_tasks::{RoleTasks, StopStage};
use crate::controller_runner::{ControllerRunner, LeaderElectionMode};
use crate::shared_stream::SharedStreams;

/// The running roles. Empty until [`Roles::start`]; until then, requests that need a role get 503.
#[derive(Default)]
pub struct Roles {
    running: OnceLock<RunningRoles>,
}

/// Streams of the cluster statuses to watchers: one computation per user, with that user's permissions. Errors are sent
/// to the watchers.
pub type ClusterStatusStreams = SharedStreams<UserInfo, Result<Arc<Value>, String>>;

/// Parts of the running roles.
pub struct RunningRoles {
    pub fleet: Fleet,
    pub cache: GlobalCache,
    pub proxy: Proxy,
    pub controller_runner: ControllerRunner,
    tasks: RoleTasks,
    backend_store_metrics: BackendStoreMetrics,
    graph_sink_metrics: GraphSinkMetrics,
    /// Closed when the task that reads the registries ends.
    registry_progress: watch::Receiver<RegistryProgress>,
    pub status_streams: ClusterStatusStreams,
    /// Cancelled when the roles stop. From then on, no task is reported as failed.
    stop_token: CancellationToken,
}

/// Configuration of the roles.
#[derive(Clone)]
pub struct RolesConfig {
    pub cache: CacheOptions,
    pub controllers: crowsnest_controllers::runtime::Config,
    pub leader_election_mode: LeaderElectionMode,
    /// Counters of requests to members.
    pub requests: RequestCounters,
    /// Allow members whose endpoints are addresses of this host.
    pub local_endpoints: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum RolesError {
    #[error("cannot read the Clusters")]
    Fleet(#[from] crowsnest_members::Error),
    #[error("cannot open the cache")]
    Cache(#[from] crowsnest_index::Error),
    #[error("the roles are already running")]
    Running,
}

impl Roles {
    /// Starts all roles against `control_plane`, which must serve the aggregated groups.
    pub async fn start(&self, control_plane: kube::Client, config: RolesConfig) -> Result<(), RolesError> {
        let endpoints = EndpointRules::new(config.local_endpoints);
        let options = FleetOptions { requests: config.requests, endpoints, ..FleetOptions::default() };
        let fleet = Fleet::start(control_plane, options).await?;
        let options = CacheOptions { indexed_labels: crowsnest_controllers::cache::indexed_labels(), ..config.cache };
        let cache = match GlobalCache::open(fleet.clone(), options).await {
            Ok(cache) => cache,
            Err(error) => {
                // The caller may retry, with another fleet.
                fleet.stop().await;
                return Err(error.into());
            }
        };
        let controller_runner = ControllerRunner::start(&cache, config.controllers, config.leader_election_mode);
        let (progress, registry_progress) = watch::channel(RegistryProgress::default());
        let (registrations, registrations_receiver) = watch::channel(None);
        let publishers = Publishers { progress, registrations };
        let backend_store_metrics = BackendStoreMetrics::default();
        let backend_stores = BackendStores {
            cache: cache.clone(),
            registrations: registrations_receiver,
            allow_local_addresses: config.local_endpoints,
            metrics: backend_store_metrics.clone(),
        };
        let graph_sink_metrics = GraphSinkMetrics::default();
        let graph_sinks = GraphSinks {
            cache: cache.clone(),
            allow_local_addresses: config.local_endpoints,
            metrics: graph_sink_metrics.clone(),
        };
        let mut tasks = RoleTasks::default();
        tasks.spawn("registries", StopStage::Readers, |stop| {
            resource_registry::run(fleet.clone(), cache.clone(), publishers, stop)
        });
        tasks.spawn("backend stores", StopStage::Writers, |stop| {
            backend_stores.run(controller_runner.stream_is_active(), stop)
        });
        tasks.spawn("graph sinks", StopStage::Writers, |stop| {
            graph_sinks.run(controller_runner.stream_is_active(), stop)
        });
        tasks.spawn("agent notifications", StopStage::Readers, |stop| {
            replica_notifications::notify_agents(fleet.tunnels().clone(), cache.replicas(), stop)
        });
        let running = RunningRoles {
            proxy: Proxy::new(cache.clone()),
            controller_runner,
            tasks,
            backend_store_metrics,
            graph_sink_metrics,
            registry_progress,
            status_streams: ClusterStatusStreams::default(),
            fleet,
            cache,
            stop_token: CancellationToken::new(),
        };
        if let Err(second) = self.running.set(running) {
            second.stop().await;
            return Err(RolesError::Running);
        }
        Ok(())
    }

    pub fn get(&self) -> Option<&RunningRoles> {
        self.running.get()
    }

    /// Reasons why roles are unhealthy; empty if all are healthy.
    pub fn problems(&self) -> Vec<String> {
        let Some(running) = self.get() else { return vec!["starting".to_owned()] };
        let mut problems = Vec::new();
        let mut add_problem = |part: &str, health: Result<(), String>| {
            if let Err(problem) = health {
                problems.push(format!("{part}: {problem}"));
            }
        };
        add_problem("fleet", running.fleet.ready());
        add_problem("cache", running.cache.check_ready());
        add_problem("controllers", running.controller_runner.health());
        // If the task has ended, its last health is outdated, and it is reported as failed below.
        if running.registry_progress.has_changed().is_ok() {
            add_problem("registries", running.registry_progress.borrow().health.clone());
        }
        problems.extend(running.tasks.failures());
        problems
    }

    pub async fn stop(&self) {
        if let Some(running) = self.get() {
            running.stop().await;
        }
    }
}

impl RunningRoles {
    /// True once the ResourceRegistries have been listed.
    pub fn has_listed_registries(&self) -> bool {
        self.registry_progress.borrow().declared
    }

    /// Messages about tasks that stopped unexpectedly. They are not restarted.
    pub fn failed_tasks(&self) -> Vec<String> {
        if self.stop_token.is_cancelled() {
            return Vec::new();
        }
        let mut failed = self.cache.failed_workers();
        failed.extend(self.controller_runner.failure().map(|reason| format!("controllers: {reason}")));
        failed.extend(self.tasks.failures());
        failed
    }

    /// Metrics of the export to backend stores. Empty if another process exports.
    pub fn backend_store_series(&self) -> Vec<crowsnest_component_base::metrics::Series> {
        self.backend_store_metrics.series()
    }

    /// Metrics of the graph sinks. Empty if another process writes.
    pub fn graph_sink_series(&self) -> Vec<crowsnest_component_base::metrics::Series> {
        self.graph_sink_metrics.series()
    }

    /// Reports that explain placements. Fails with the reason until the caches have synced.
    pub fn reports(&self) -> Result<crowsnest_controllers::reports::Reports, String> {
        self.controller_runner.reports()
    }

    /// Stops in the order of dependencies, each part after the previous one has ended: writers before readers, readers
    /// before connections.
    async fn stop(&self) {
        self.stop_token.cancel();
        self.tasks.stop(StopStage::Writers).await;
        self.controller_runner.stop().await;
        self.tasks.stop(StopStage::Readers).await;
        self.status_streams.stop().await;
        self.proxy.stop().await;
        self.cache.stop().await;
        self.fleet.stop().await;
    }
}
