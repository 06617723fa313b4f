//! Starts and stops the roles that run against a control plane (fleet, cache, controllers, proxy) in dependency order, and reports their
//! health.

mod replica_notifications;

use std::sync::{Arc, OnceLock};

use crowsnest_apimachinery::user::UserInfo;
use crowsnest_component_base::requests::RequestCounters;
use crowsnest_index::{Index, IndexOptions};
use crowsnest_members::{EndpointRules, Fleet, FleetOptions};
use crowsnest_proxy::Proxy;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::controller_runner::{ControllerRunner, LeaderElectionMode};
use crate::shared_stream::SharedStreams;

/// The running roles. Empty until [`Roles::start`]; until then, requests that need a role get 503.
#[derive(Default)]
pub struct Roles {
    running: OnceLock<RunningRoles>,
}

/// Cluster statuses as streamed to watchers, one computation per user with that user's permissions. Errors are sent to
/// the watchers.
pub type Statuses = SharedStreams<UserInfo, Result<Arc<Value>, String>>;

/// Parts of the running roles.
pub struct RunningRoles {
    pub fleet: Fleet,
    pub index: Index,
    pub proxy: Proxy,
    pub controller_runner: ControllerRunner,
    registries: JoinHandle<()>,
    backend_stores: JoinHandle<()>,
    backend_store_metrics: crowsnest_controllers::search::backend_stores::BackendStoreMetrics,
    graph_sinks: JoinHandle<()>,
    graph_sink_metrics: crowsnest_controllers::search::graph_sinks::GraphSinkMetrics,
    /// Task that reports new replicas to agents.
    agent_notifications: JoinHandle<()>,
    registry_progress: tokio::sync::watch::Receiver<crowsnest_controllers::search::resource_registry::RegistryProgress>,
    pub statuses: Statuses,
    stop: CancellationToken,
}

/// Configuration of the roles.
#[derive(Clone)]
pub struct RolesConfig {
    pub cache: IndexOptions,
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
    Index(#[from] crowsnest_index::Error),
    #[error("the roles are already running")]
    Running,
}

impl Roles {
    /// Starts all roles against `control_plane`, which must serve the aggregated groups.
    pub async fn start(&self, control_plane: kube::Client, config: RolesConfig) -> Result<(), RolesError> {
        let endpoints = EndpointRules::new(config.local_endpoints);
        let options = FleetOptions { requests: config.requests, endpoints, ..FleetOptions::default() };
        let fleet = Fleet::start(control_plane, options).await?;
        let options = IndexOptions { indexed_labels: crowsnest_controllers::cache::indexed_labels(), ..config.cache };
        let index = match Index::open(fleet.clone(), options).await {
            Ok(index) => index,
            Err(error) => {
                // The caller may retry, with another fleet.
                fleet.stop().await;
                return Err(error.into());
            }
        };
        let stop = CancellationToken::new();
        let controller_runner = ControllerRunner::start(&index, config.controllers, config.leader_election_mode, &stop);
        let (progress, registry_progress) =
            tokio::sync::watch::channel(crowsnest_controllers::search::resource_registry::RegistryProgress::default());
        let (registrations, registrations_receiver) = tokio::sync::watch::channel(None);
        let publishers = crowsnest_controllers::search::resource_registry::Publishers { progress, registrations };
        let registries = crowsnest_controllers::search::resource_registry::run(
            fleet.clone(),
            index.clone(),
            publishers,
            stop.clone(),
        );
        let backend_store_metrics = crowsnest_controllers::search::backend_stores::BackendStoreMetrics::default();
        let backend_stores = crowsnest_controllers::search::backend_stores::BackendStores {
            index: index.clone(),
            registrations: registrations_receiver,
            allow_local_addresses: config.local_endpoints,
            metrics: backend_store_metrics.clone(),
        };
        let backend_stores = backend_stores.run(controller_runner.stream_is_active(), stop.clone());
        let graph_sink_metrics = crowsnest_controllers::search::graph_sinks::GraphSinkMetrics::default();
        let graph_sinks = crowsnest_controllers::search::graph_sinks::GraphSinks {
            index: index.clone(),
            allow_local_addresses: config.local_endpoints,
            metrics: graph_sink_metrics.clone(),
        };
        let graph_sinks = graph_sinks.run(controller_runner.stream_is_active(), stop.clone());
        let agent_notifications =
            replica_notifications::notify_agents(fleet.tunnels().clone(), index.replicas(), stop.clone());
        let running = RunningRoles {
            proxy: Proxy::new(index.clone()),
            controller_runner,
            registries: tokio::spawn(registries),
            backend_stores: tokio::spawn(backend_stores),
            backend_store_metrics,
            graph_sinks: tokio::spawn(graph_sinks),
            graph_sink_metrics,
            agent_notifications: tokio::spawn(agent_notifications),
            registry_progress,
            statuses: Statuses::default(),
            fleet,
            index,
            stop,
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
        add_problem("cache", running.index.check_ready());
        add_problem("controllers", running.controller_runner.health());
        if running.registries.is_finished() && !running.stop.is_cancelled() {
            add_problem("registries", Err("the task stopped unexpectedly".to_owned()));
        } else {
            add_problem("registries", running.registry_progress.borrow().health.clone());
        }
        if running.backend_stores.is_finished() && !running.stop.is_cancelled() {
            add_problem("backend stores", Err("the task stopped unexpectedly".to_owned()));
        }
        if running.graph_sinks.is_finished() && !running.stop.is_cancelled() {
            add_problem("graph sinks", Err("the task stopped unexpectedly".to_owned()));
        }
        if running.agent_notifications.is_finished() && !running.stop.is_cancelled() {
            add_problem("agent notifications", Err("the task stopped unexpectedly".to_owned()));
        }
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
        if self.stop.is_cancelled() {
            return Vec::new();
        }
        let mut failed = self.index.failed_workers();
        failed.extend(self.controller_runner.failure().map(|why| format!("controllers: {why}")));
        if self.registries.is_finished() {
            failed.push("registries: the task stopped unexpectedly".to_owned());
        }
        if self.backend_stores.is_finished() {
            failed.push("backend stores: the task stopped unexpectedly".to_owned());
        }
        if self.graph_sinks.is_finished() {
            failed.push("graph sinks: the task stopped unexpectedly".to_owned());
        }
        if self.agent_notifications.is_finished() {
            failed.push("agent notifications: the task stopped unexpectedly".to_owned());
        }
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

    /// Stops in the order of dependencies: writers before readers, readers before connections.
    async fn stop(&self) {
        self.stop.cancel();
        self.controller_runner.stop().await;
        self.statuses.stop().await;
        self.proxy.stop().await;
        self.index.stop().await;
        self.fleet.stop().await;
    }
}
