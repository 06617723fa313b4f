//! `crowsnest serve`: what `crowsnest up` does for its own control plane, for one that runs elsewhere - any that is Kubernetes'.
//! Starts the roles it was given, tells how far it is, waits for a signal, and stops in the opposite order.
//!
//! It writes nothing into the control plane to be there: `crowsnest install` has done that. Nothing here knows the embedded one.

mod certificate;
mod contact;
mod probes;
mod shortcut;
mod tasks;
mod upstream;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use crowsnest_apiserver::audit::log::Writer;
use crowsnest_apiserver::authn::{Oidc, Serving};
use crowsnest_component_base::retry::{Backoff, Delays};
use crowsnest_index::{IndexOptions, StoreOptions};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::aggregated::request::authentication::Delegated;
use crate::aggregated::request::middleware::Edge;
use crate::aggregated::server::{Aggregated, router};
use crate::commands::estimator::Listening;
use crate::commands::serve::{Role, ServeArgs};
use crate::leading::{Election, LEASES, Times};
use crate::reload::Reloader;
use crate::roles::{Roles, RolesConfig, RolesError};
use crate::serving::{self, Sessions, Tls};
use crate::steering::Steers;
use crate::trust::{self, Trust};
use crate::ui::oidc::{Client, SignIn};
use crate::ui::{self, Ui};
use crate::up::datadir::DataDir;
use crate::up::{Stop, bind};
use crate::webhook;
use contact::{Contact, Guard};
use probes::{Phase, Probes};
use tasks::Tasks;

/// Between two tries of what has to work before anything else can; twice as long each time.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// Runs until told to stop.
pub(crate) async fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let stop = CancellationToken::new();
    Stop::new()?.drained(&stop, serve(args, &stop)).await?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(args: ServeArgs, stop: &CancellationToken) -> anyhow::Result<()> {
    let mut site = Site::prepare(args).await?;
    let started = tokio::select! {
        started = site.start() => started,
        () = stop.cancelled() => Ok(()),
    };
    if started.is_ok() {
        stop.cancelled().await;
    }
    site.stop().await;
    started
}

/// What flags say, read and found sound.
struct Said {
    controllers: crowsnest_controllers::runtime::Config,
    times: Times,
    oidc: Option<(Arc<Oidc>, Client)>,
    replica: String,
    /// Of the cache, and its folder where that is not the data directory's.
    store: (StoreOptions, Option<PathBuf>),
}

impl Said {
    fn read(args: &ServeArgs) -> anyhow::Result<Self> {
        args.keep.backend.check()?;
        let ui = args.ui_listen.0.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 7080)));
        let oidc = args.oidc.read()?;
        let oidc = oidc.map(|oidc| anyhow::Ok((oidc, args.sign_in.read(ui)?))).transpose()?;
        let replica = args.replica.clone().unwrap_or_else(|| replica(rand::random()));
        Ok(Self {
            controllers: args.controllers.read(crowsnest_controllers::runtime::Config::default())?,
            times: args.leading.times()?,
            oidc,
            store: args.store(&replica)?,
            replica,
        })
    }
}

/// Everything that runs.
struct Site {
    args: ServeArgs,
    said: Said,
    dir: DataDir,
    upstream: kube::Config,
    control_plane: kube::Client,
    roles: Arc<Roles>,
    edge: Edge,
    reloader: Option<Reloader>,
    phase: watch::Sender<Phase>,
    /// Whether the control plane answers; told by a task of its own.
    contact: watch::Sender<Contact>,
    /// Of the aggregated APIs and the webhooks.
    sessions: Sessions,
    /// Of requests; they end after what is asked of them.
    servers: Tasks,
    /// Told while the rest ends, too.
    probes: TaskTracker,
    probing: CancellationToken,
    audit: Option<Writer>,
}

impl Site {
    /// All that can be found wrong without the control plane, and the probes.
    async fn prepare(args: ServeArgs) -> anyhow::Result<Self> {
        let said = Said::read(&args)?;
        let mut upstream = match &args.kubeconfig {
            Some(file) => crowsnest_component_base::kubeconfig::config(Some(file), args.context.as_deref()).await?,
            None => kube::Config::incluster()
                .context("outside of a pod, name the control plane's kubeconfig with --kubeconfig")?,
        };
        // All that ask have a pace of their own, and a fence may end before the client's.
        upstream.default_retry = false;
        let dir = DataDir::open(&args.data_dir.clone().unwrap_or_else(default_data_dir), false)?;
        let (auditor, audit) = args.edge.audit.start(&dir.dir("audit")?)?;
        let mut reloader = args.edge.reloader();
        let edge = args.edge.edge(auditor, reloader.counts());
        let host = upstream.cluster_url.authority().map(|host| host.as_str()).unwrap_or_default();
        let counted = edge.figures.requests.layer(host);
        let phase = watch::Sender::new(Phase::Starting("nothing has been asked yet".to_owned()));
        let file = args.kubeconfig.clone().map(|file| (file, args.context.clone()));
        let site = Self {
            control_plane: upstream::client(upstream.clone(), file, counted, &mut reloader).await?,
            upstream,
            roles: Arc::new(Roles::default()),
            edge,
            reloader: Some(reloader),
            phase,
            contact: watch::Sender::new(Contact::Heard),
            sessions: Sessions::default(),
            servers: Tasks::default(),
            probes: TaskTracker::new(),
            probing: CancellationToken::new(),
            audit,
            dir,
            said,
            args,
        };
        site.probe().await?;
        Ok(site)
    }

    async fn probe(&self) -> anyhow::Result<()> {
        let probes = Probes {
            phase: self.phase.subscribe(),
            contact: self.contact.subscribe(),
            servers: self.servers.clone(),
            roles: Arc::clone(&self.roles),
            caches: self.args.caches(),
            edge: self.edge.clone(),
        };
        for (Listening(address), what, routes) in [
            (self.args.health_probe_bind_address, "--health-probe-bind-address", probes::health(probes.clone())),
            (self.args.metrics_bind_address, "--metrics-bind-address", probes::metrics(probes)),
        ] {
            let Some(address) = address else { continue };
            let listener = bind(address, what).await?;
            self.probes.spawn(serving::serve(listener, None, routes, self.probing.clone()));
        }
        Ok(())
    }

    async fn start(&mut self) -> anyhow::Result<()> {
        // Taken at once, so that an address that is taken by somebody else is told at once.
        let enters = self.args.does(Role::Aggregated) || self.args.does(Role::Webhook);
        let listener = if enters { Some(bind(self.args.listen, "--listen").await?) } else { None };
        let ui = match self.args.ui_listen.0.filter(|_| self.args.does(Role::Ui)) {
            Some(address) => Some(bind(address, "--ui-listen").await?),
            None => None,
        };
        let Some(mut reloader) = self.reloader.take() else { bail!("it has been started already") };
        let secure = ui.as_ref().map(TcpListener::local_addr).transpose()?.is_some_and(|at| !at.ip().is_loopback());
        let own = match enters || secure {
            true => Some(self.certificate(&mut reloader).await?),
            false => None,
        };
        if let (Some(listener), Some(own)) = (listener, &own) {
            self.enter(listener, Arc::clone(own), &mut reloader).await?;
        }
        if let Some(listener) = ui {
            self.show(listener, own.filter(|_| secure), &mut reloader).await?;
        }
        let stop = self.servers.stopping();
        self.servers.keep("files that are read again", reloader.run(stop.clone()));
        let (client, tell, sessions) = (self.control_plane.clone(), self.contact.clone(), self.sessions.clone());
        self.servers.keep("contact with the control plane", contact::follow(client, tell, sessions, stop.clone()));
        if self.args.caches() {
            self.work().await?;
        }
        self.phase.send_replace(Phase::Running);
        tracing::info!(replica = self.said.replica, roles = ?self.args.roles, "serving");
        Ok(())
    }

    async fn certificate(&self, reloader: &mut Reloader) -> anyhow::Result<Arc<Serving>> {
        let files = self.args.tls_cert_file.clone().zip(self.args.tls_private_key_file.clone());
        if files.is_none() {
            // The only part of it that may take its time.
            self.reached().await;
        }
        certificate::serving(files, reloader, &self.control_plane, &self.servers).await
    }

    /// Waits for the control plane to answer.
    async fn reached(&self) {
        let mut delays = AGAIN.delays();
        while let Err(error) = self.control_plane.apiserver_version().await {
            self.wait(&mut delays, format!("the control plane does not answer: {error}")).await;
        }
    }

    async fn wait(&self, delays: &mut Delays, why: String) {
        tracing::warn!(why, "trying again");
        self.phase.send_replace(Phase::Starting(why));
        tokio::time::sleep(delays.next_delay()).await;
    }

    /// Serves the aggregated APIs and the webhooks, whichever of them are wanted.
    async fn enter(&self, listener: TcpListener, own: Arc<Serving>, reloader: &mut Reloader) -> anyhow::Result<()> {
        self.reached().await;
        let client = &self.control_plane;
        let told = trust::told(client.clone()).await?;
        let tls = Tls::new(Arc::clone(&own), told.authorities()?);
        let trust = Arc::new(Trust::new(tls.clone(), told));
        self.args.edge.watch(reloader, &trust, vec![own]).await?;
        let (follower, stop) = (client.clone(), self.servers.stopping().clone());
        self.servers.keep("whom the listener believes", async move { trust.follow(follower, stop).await });
        let mut routes = axum::Router::new();
        if self.args.does(Role::Webhook) {
            let settings = (&self.said.controllers, self.args.allow_local_endpoints);
            let admissions = &self.edge.figures.admissions;
            let clients = self.args.webhooks.clients(reloader).await?;
            routes = routes.nest("/webhooks", webhook::routes(client.clone(), settings, admissions, clients));
        }
        if self.args.does(Role::Aggregated) {
            routes = routes.fallback_service(router(Aggregated {
                control_plane: client.clone(),
                delegated: Delegated::new(client.clone()),
                roles: Arc::clone(&self.roles),
                edge: self.edge.clone(),
                metrics_adapter: self.args.adapter.metrics_adapter,
            }));
        }
        let guard = Guard { contact: self.contact.subscribe(), stopping: self.servers.stopping().clone() };
        let routes = routes.layer(axum::middleware::from_fn_with_state(guard, contact::guard));
        let (sessions, stop) = (self.sessions.clone(), self.servers.stopping().clone());
        self.servers.keep("--listen", serving::serve_sessions(listener, tls, routes, sessions, stop));
        Ok(())
    }

    async fn show(
        &mut self,
        listener: TcpListener,
        own: Option<Arc<Serving>>,
        reloader: &mut Reloader,
    ) -> anyhow::Result<()> {
        let seal = self.args.ui.seal(&self.dir, reloader).await?;
        let oidc = self.said.oidc.take();
        let passing = self.servers.passing().clone();
        let oidc = oidc.map(|(oidc, client)| SignIn::new(oidc, client, seal.clone(), passing.clone()));
        let stop = self.servers.stopping();
        let tunnels = ui::Tunnels { tasks: passing, stopping: stop.clone() };
        let ui = Ui::new(self.upstream.clone(), seal, own.is_some(), &self.args.ui.ui_host, tunnels)?.with_oidc(oidc);
        let tls = own.map(Tls::anybody);
        self.servers.keep("--ui-listen", serving::serve(listener, tls, ui::router(ui), stop.clone()));
        Ok(())
    }

    /// Starts cache and controllers, as soon as what they need is there.
    async fn work(&self) -> anyhow::Result<()> {
        let (store, folder) = self.said.store.clone();
        let folder = folder.map_or_else(|| self.dir.dir("cache"), Ok)?;
        let config = RolesConfig {
            cache: IndexOptions { store, ..self.args.keep.options(folder) },
            controllers: self.said.controllers.clone(),
            steers: self.steers(),
            requests: self.edge.figures.requests.clone(),
            local_endpoints: self.args.allow_local_endpoints,
        };
        let client = shortcut::client(&self.control_plane);
        let mut delays = AGAIN.delays();
        loop {
            match self.roles.start(client.clone(), config.clone()).await {
                Ok(()) => return Ok(()),
                Err(error @ RolesError::Running) => return Err(error.into()),
                Err(error) => self.wait(&mut delays, format!("{:#}", anyhow::Error::new(error))).await,
            }
        }
    }

    fn steers(&self) -> Steers {
        match (self.args.does(Role::Controllers), self.args.leading.leader_elect) {
            (false, _) => Steers::Never,
            (true, false) => Steers::Always,
            (true, true) => Steers::Elected(Election {
                control_plane: self.control_plane.clone(),
                namespace: self.args.leading.leader_elect_resource_namespace.clone(),
                leases: LEASES.map(str::to_owned).to_vec(),
                me: self.said.replica.clone(),
                times: self.said.times,
            }),
        }
    }

    /// Says that it stops, lets another process steer, answers what has been asked, then ends what works.
    async fn stop(self) {
        self.phase.send_replace(Phase::Stopping);
        if let Some(running) = self.roles.get() {
            running.steering.stop().await;
        }
        tokio::time::sleep(self.args.shutdown_delay_duration).await;
        self.servers.stop().await;
        self.roles.stop().await;
        self.probing.cancel();
        self.probes.close();
        self.probes.wait().await;
        if let Some(audit) = self.audit {
            audit.stop().await;
        }
    }
}

fn default_data_dir() -> PathBuf {
    crowsnest_cli::data_dir::default_data_dir().with_file_name("crowsnest-serve")
}

/// No two processes have the same name.
fn replica(random: u32) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}-{random:08x}", host.trim())
}
