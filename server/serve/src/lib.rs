//! `crowsnest serve`: runs the roles of Crowsnest against an existing control plane, such as kube-apiserver;
//! `crowsnest up` does so for its embedded one. Starts the configured roles, reports progress, waits for a signal and
//! stops in reverse order.
//!
//! It does not register itself in the control plane; `crowsnest install` does that. This crate does not depend on the
//! embedded control plane.

pub mod api_config;
mod certificate;
mod config;
mod connectivity;
mod probes;
mod stored_client;
mod upstream;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use crowsnest_api::role::Role;
use crowsnest_apiserver::audit::log::Writer;
use crowsnest_apiserver::authn::{Oidc, ServingCertificates};
use crowsnest_component_base::kubeconfig::load_or_in_cluster;
use crowsnest_component_base::requests::RequestCountLayer;
use crowsnest_component_base::retry::{Backoff, Delays};
use crowsnest_component_base::tasks::Tasks;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api_config::webhook_clients;
pub use config::{Config, LeaderElection};
use connectivity::{Connectivity, Guard};
use crowsnest_aggregated::admission::{AdmissionChain, ClusterDns};
use crowsnest_aggregated::request::authentication::DelegatedAuth;
use crowsnest_aggregated::request::middleware::ApiMiddleware;
use crowsnest_aggregated::resource::registry::REGISTRY;
use crowsnest_aggregated::server::{AggregatedServer, router};
use crowsnest_api::names::LEASES;
use crowsnest_process::client_ca::{ClientCaUpdater, load_trusted_cas};
use crowsnest_process::data_dir::DataDir;
use crowsnest_process::reload::Reloader;
use crowsnest_process::serving::bind;
use crowsnest_process::serving::{self, OpenConnections, Tls};
use crowsnest_process::signals::StopSignals;
use crowsnest_runtime::controller_runner::{ControllersHang, LeaderElectionMode};
use crowsnest_runtime::leader_election::{Election, ElectionThread};
use crowsnest_runtime::roles::{Roles, RolesConfig, RolesError};
use crowsnest_ui::Ui;
use crowsnest_ui::oidc::{Client, SignIn};
use probes::{Phase, Probes};

/// Backoff of start-up steps that everything else depends on.
const STARTUP_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// Runs a server with this configuration until the process receives a signal.
pub async fn run(config: Config) -> anyhow::Result<ExitCode> {
    let (server, stop) = (config.validate()?, CancellationToken::new());
    StopSignals::new()?.run_until_signal(&stop, server.start(&stop)).await?;
    Ok(ExitCode::SUCCESS)
}

/// A `serve` process with a validated configuration.
pub struct Server {
    config: Config,
    sign_in: Option<(Arc<Oidc>, Client)>,
}

impl Server {
    fn new(config: Config, sign_in: Option<(Arc<Oidc>, Client)>) -> Self {
        Self { config, sign_in }
    }

    /// Starts all parts, and stops them in reverse order once `stop` is cancelled. Fails without stopping them if the controllers
    /// hang, since a supervisor must restart this process then.
    pub async fn start(self, stop: &CancellationToken) -> anyhow::Result<()> {
        let start = Instant::now();
        let mut running = RunningServer::prepare(self).await?;
        // The start of the controllers is its last step, so that controllers cannot hang before it ends.
        let result = tokio::select! {
            result = running.start() => result,
            () = stop.cancelled() => Ok(()),
        };
        if result.is_ok() {
            let serve = async {
                stop.run_until_cancelled(running.report_ready(start)).await;
                stop.cancelled().await;
            };
            tokio::select! {
                () = serve => {}
                hang = running.wait_for_hang() => return Err(hang.into()),
            }
        }
        running.stop().await;
        result
    }
}

/// All tasks and listeners of a running server.
struct RunningServer {
    config: Config,
    sign_in: Option<(Arc<Oidc>, Client)>,
    dir: DataDir,
    upstream: kube::Config,
    control_plane: kube::Client,
    /// `None` if this process runs no controllers, or runs them without leader election.
    election: Option<Election>,
    roles: Arc<Roles>,
    middleware: ApiMiddleware,
    reloader: Option<Reloader>,
    phase: watch::Sender<Phase>,
    /// Connectivity to the control plane, updated by [`connectivity::monitor`].
    connectivity: watch::Sender<Connectivity>,
    /// Connections of the aggregated APIs and the webhooks.
    connections: OpenConnections,
    /// Addresses of the API and the UI, by name.
    addresses: Vec<(&'static str, SocketAddr)>,
    /// Servers of the APIs, the webhooks and the UI; they stop after open requests are answered.
    servers: Tasks,
    /// Probe and metrics servers; they respond until everything else has stopped.
    probes: TaskTracker,
    stop_probes: CancellationToken,
    audit: Option<Writer>,
}

impl RunningServer {
    /// Validates everything that needs no control plane, and starts the probes.
    async fn prepare(Server { config, sign_in }: Server) -> anyhow::Result<Self> {
        let mut upstream = load_or_in_cluster(config.kubeconfig.as_ref()).await?;
        // All callers retry themselves, and a write fence may close before the client's retries end.
        upstream.default_retry = false;
        let dir = DataDir::open(&config.data_dir, false)?;
        let (auditor, audit) = config.api.audit.start(dir.dir("audit")?)?;
        let mut reloader = config.api.reloader();
        let middleware = config.api.middleware(auditor, reloader.counts());
        let host = upstream.cluster_url.authority().map(|host| host.as_str()).unwrap_or_default();
        let request_metrics = middleware.metrics.requests.layer(host);
        let phase = watch::Sender::new(Phase::Starting("connecting to the control plane".to_owned()));
        let kubeconfig = config.kubeconfig.clone();
        let running = Self {
            election: prepare_election(&config, upstream.clone(), request_metrics.clone(), &mut reloader).await?,
            control_plane: upstream::client(upstream.clone(), kubeconfig, request_metrics, &mut reloader).await?,
            upstream,
            roles: Arc::new(Roles::default()),
            middleware,
            reloader: Some(reloader),
            phase,
            connectivity: watch::Sender::new(Connectivity::Responding),
            connections: OpenConnections::default(),
            addresses: Vec::new(),
            servers: Tasks::default(),
            probes: TaskTracker::new(),
            stop_probes: CancellationToken::new(),
            audit,
            dir,
            sign_in,
            config,
        };
        running.serve_probes().await?;
        Ok(running)
    }

    async fn serve_probes(&self) -> anyhow::Result<()> {
        let probes = Probes {
            phase: self.phase.subscribe(),
            connectivity: self.connectivity.subscribe(),
            servers: self.servers.clone(),
            roles: Arc::clone(&self.roles),
            requires_cache: self.config.has_cache(),
            middleware: self.middleware.clone(),
        };
        let (health, metrics) = (probes::health(probes.clone()), probes::metrics(probes));
        for server in self.config.probe_addresses.bind(health, metrics, self.stop_probes.clone()).await? {
            self.probes.spawn(server);
        }
        Ok(())
    }

    async fn start(&mut self) -> anyhow::Result<()> {
        // Bind first, so that an address in use is reported at once.
        let serves_api = self.config.has_role(Role::Aggregated) || self.config.has_role(Role::Webhook);
        let listener = if serves_api { Some(bind(self.config.listen, "--listen").await?) } else { None };
        let ui = match self.config.ui_listen.filter(|_| self.config.has_role(Role::Ui)) {
            Some(address) => Some(bind(address, "--ui-listen").await?),
            None => None,
        };
        for (name, listener) in [("API", &listener), ("UI", &ui)] {
            if let Some(listener) = listener {
                self.addresses.push((name, listener.local_addr()?));
            }
        }
        let Some(mut reloader) = self.reloader.take() else { bail!("the server was started already") };
        let ui_needs_tls =
            ui.as_ref().map(TcpListener::local_addr).transpose()?.is_some_and(|address| !address.ip().is_loopback());
        let certificates = match serves_api || ui_needs_tls {
            true => Some(self.certificate(&mut reloader).await?),
            false => None,
        };
        if let (Some(listener), Some(certificates)) = (listener, &certificates) {
            self.serve_api(listener, Arc::clone(certificates), &mut reloader).await?;
        }
        if let Some(listener) = ui {
            self.serve_ui(listener, certificates.filter(|_| ui_needs_tls), &mut reloader).await?;
        }
        let stop = self.servers.stop_token();
        self.servers.spawn_until_stop("file reload", reloader.run(stop.clone()));
        let (client, connectivity_sender, connections) =
            (self.control_plane.clone(), self.connectivity.clone(), self.connections.clone());
        self.servers.spawn_until_stop(
            "connectivity check of the control plane",
            connectivity::monitor(client, connectivity_sender, connections, stop.clone()),
        );
        if self.config.has_cache() {
            self.start_roles().await?;
        }
        self.phase.send_replace(Phase::Running);
        tracing::info!(replica = self.config.replica, roles = ?self.config.roles, "serving");
        Ok(())
    }

    /// Waits until the leader is known, then prints one line: addresses, roles, and whether this replica leads or stands by.
    async fn report_ready(&self, start: Instant) {
        let leadership = match self.roles.get() {
            Some(running) => running.controller_runner.wait_for_leader().await.to_string(),
            None => "runs no controllers".to_owned(),
        };
        let roles = self.config.roles.iter().map(|role| format!("{role:?}").to_lowercase());
        let roles = roles.collect::<Vec<_>>().join(",");
        let addresses = self.addresses.iter().map(|(name, address)| format!("{name} {address}, ")).collect::<String>();
        let line = format!("ready ({} ms): {addresses}roles {roles}, {leadership}", start.elapsed().as_millis());
        if let Err(error) = writeln!(io::stdout(), "{line}") {
            tracing::warn!(%error, line, "standard output is closed");
        }
    }

    /// Waits until the controllers hang. Never completes without controllers.
    async fn wait_for_hang(&self) -> ControllersHang {
        match self.roles.get() {
            Some(running) => running.controller_runner.wait_for_hang().await,
            None => std::future::pending().await,
        }
    }

    async fn certificate(&self, reloader: &mut Reloader) -> anyhow::Result<Arc<ServingCertificates>> {
        let files = self.config.certificate.clone();
        if files.is_none() {
            // Only reading the Secret requires the control plane.
            self.wait_for_control_plane().await;
        }
        certificate::load(files, reloader, &self.control_plane, &self.servers).await
    }

    /// Waits until the control plane responds.
    async fn wait_for_control_plane(&self) {
        let mut delays = STARTUP_BACKOFF.delays();
        while let Err(error) = self.control_plane.apiserver_version().await {
            self.delay_startup(&mut delays, format!("cannot connect to the control plane: {error}")).await;
        }
    }

    async fn delay_startup(&self, delays: &mut Delays, reason: String) {
        tracing::warn!(reason, "start-up is delayed; will retry");
        self.phase.send_replace(Phase::Starting(reason));
        tokio::time::sleep(delays.next_delay()).await;
    }

    /// Serves the aggregated APIs and the webhooks, as the roles require.
    async fn serve_api(
        &self,
        listener: TcpListener,
        certificates: Arc<ServingCertificates>,
        reloader: &mut Reloader,
    ) -> anyhow::Result<()> {
        self.wait_for_control_plane().await;
        let client = &self.control_plane;
        let trusted_cas = load_trusted_cas(client.clone()).await?;
        let tls = Tls::new(Arc::clone(&certificates), trusted_cas.authorities()?);
        let client_cas = Arc::new(ClientCaUpdater::new(tls.clone(), trusted_cas));
        self.config.api.watch(reloader, &client_cas, vec![certificates]).await?;
        let (watch_client, stop) = (client.clone(), self.servers.stop_token().clone());
        self.servers.spawn_until_stop("client CAs of the listener", async move {
            client_cas.watch_config_map(watch_client, stop).await;
        });
        let mut routes = axum::Router::new();
        if self.config.has_role(Role::Webhook) {
            let clients = webhook_clients(self.config.webhook_clients.as_ref(), reloader).await?;
            let webhooks = crowsnest_webhook::routes(
                client.clone(),
                &self.config.controllers,
                self.config.allow_local_endpoints,
                &self.middleware.metrics.admissions,
                clients,
            );
            routes = routes.nest("/webhooks", webhooks);
        }
        if self.config.has_role(Role::Aggregated) {
            let delegated = DelegatedAuth::new(client.clone());
            let admission = Arc::new(AdmissionChain::new(client.clone(), delegated.clone(), Arc::new(ClusterDns)));
            let run = Arc::clone(&admission).run(self.servers.stop_token().clone());
            self.servers.spawn_until_stop("policies and webhooks of the control plane", run);
            routes = routes.fallback_service(router(AggregatedServer {
                registry: &REGISTRY,
                control_plane: client.clone(),
                delegated,
                admission,
                roles: Arc::clone(&self.roles),
                middleware: self.middleware.clone(),
                metrics_adapter: self.config.metrics_adapter,
            }));
        }
        let guard = Guard { connectivity: self.connectivity.subscribe(), stop: self.servers.stop_token().clone() };
        let routes = routes.layer(axum::middleware::from_fn_with_state(guard, connectivity::guard));
        let (connections, stop) = (self.connections.clone(), self.servers.stop_token().clone());
        self.servers
            .spawn_until_stop("--listen", serving::serve_with_connections(listener, tls, routes, connections, stop));
        Ok(())
    }

    async fn serve_ui(
        &mut self,
        listener: TcpListener,
        certificates: Option<Arc<ServingCertificates>>,
        reloader: &mut Reloader,
    ) -> anyhow::Result<()> {
        let seal = self.config.ui.load_seal(&self.dir, reloader).await?;
        let oidc = self.sign_in.take();
        let tracker = self.servers.tracker().clone();
        let oidc = oidc.map(|(oidc, client)| SignIn::new(oidc, client, seal.clone(), tracker.clone()));
        let stop = self.servers.stop_token();
        let connections = crowsnest_ui::UpgradedConnections { tasks: tracker, stop: stop.clone() };
        let ui = Ui::new(self.upstream.clone(), seal, certificates.is_some(), &self.config.ui.hosts, connections)?
            .with_oidc(oidc);
        let tls = certificates.map(Tls::without_client_certificates);
        self.servers
            .spawn_until_stop("--ui-listen", serving::serve(listener, tls, crowsnest_ui::router(ui), stop.clone()));
        Ok(())
    }

    /// Starts cache and controllers; retries until their prerequisites exist.
    async fn start_roles(&self) -> anyhow::Result<()> {
        let mut cache = self.config.cache.clone();
        if cache.data_dir.as_os_str().is_empty() {
            cache.data_dir = self.dir.dir("cache")?;
        }
        let config = RolesConfig {
            cache,
            controllers: self.config.controllers.clone(),
            leader_election_mode: self.leader_election_mode(),
            requests: self.middleware.metrics.requests.clone(),
            local_endpoints: self.config.allow_local_endpoints,
        };
        let client = stored_client::client(&self.control_plane);
        let mut delays = STARTUP_BACKOFF.delays();
        loop {
            match self.roles.start(client.clone(), config.clone()).await {
                Ok(()) => return Ok(()),
                Err(error @ RolesError::Running) => return Err(error.into()),
                Err(error) => self.delay_startup(&mut delays, format!("{:#}", anyhow::Error::new(error))).await,
            }
        }
    }

    fn leader_election_mode(&self) -> LeaderElectionMode {
        match (self.config.has_role(Role::Controllers), &self.election) {
            (false, _) => LeaderElectionMode::Never,
            (true, None) => LeaderElectionMode::Always,
            (true, Some(election)) => LeaderElectionMode::Elected(election.clone()),
        }
    }

    /// Becomes unready, releases leadership, drains open requests, then stops the parts.
    async fn stop(self) {
        self.phase.send_replace(Phase::Stopping);
        if let Some(running) = self.roles.get() {
            running.controller_runner.stop().await;
        }
        tokio::time::sleep(self.config.shutdown_delay).await;
        self.servers.stop().await;
        self.roles.stop().await;
        self.stop_probes.cancel();
        self.probes.close();
        self.probes.wait().await;
        if let Some(audit) = self.audit {
            audit.stop().await;
        }
    }
}

/// Prepares leader election with a thread and a client of its own: other tasks and requests must not delay a renewal.
/// `None` if this process runs no controllers, or runs them without leader election.
async fn prepare_election(
    config: &Config,
    upstream: kube::Config,
    request_metrics: RequestCountLayer,
    reloader: &mut Reloader,
) -> anyhow::Result<Option<Election>> {
    let leader_election = &config.leader_election;
    if !leader_election.is_enabled || !config.has_role(Role::Controllers) {
        return Ok(None);
    }
    let thread = Arc::new(ElectionThread::start().context("cannot start the thread of leader election")?);
    let client = upstream::client(upstream, config.kubeconfig.clone(), request_metrics, reloader);
    Ok(Some(Election {
        control_plane: thread.wrap(client).await?,
        thread,
        namespace: leader_election.namespace.clone(),
        leases: LEASES.map(str::to_owned).to_vec(),
        identity: config.replica.clone(),
        timings: leader_election.timings,
    }))
}
