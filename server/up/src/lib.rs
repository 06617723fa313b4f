//! `crowsnest up`: a whole fleet in one process. Starts the parts in order of dependency, reports progress, waits for a
//! signal and stops them in reverse order.

pub mod alone;
mod config;
mod controlplane;
pub mod fleet;
mod joined;
mod kubeconfigs;
mod members;
mod progress;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use anyhow::bail;
use crowsnest_apiserver::audit::log::Writer;
use crowsnest_apiserver::authn::Oidc;
use crowsnest_apiserver::authn::oidc::whole;
use crowsnest_component_base::tasks::Tasks;
use crowsnest_index::IndexOptions;
use crowsnest_process::data_dir::DataDir;
use crowsnest_process::serving::{self, bind};
use crowsnest_process::signals::StopSignals;
use crowsnest_sim::member::admin;
use tokio::net::TcpListener;

pub use config::{ApiserverConfig, Config, DataDirConfig, MemberConfig, Members};
use controlplane::{ControlPlane, ControlPlaneOptions};
use crowsnest_runtime::controller_runner::LeaderElectionMode;
use crowsnest_runtime::roles::{Roles, RolesConfig};
use crowsnest_ui::Ui;
use crowsnest_ui::oidc::SignIn;
use joined::Joined;
use kubeconfigs::Kubeconfigs;
use progress::Progress;

/// A fleet with a validated configuration.
pub struct Server(Config);

/// Runs a fleet until the process receives a signal.
pub async fn run(config: Config) -> anyhow::Result<ExitCode> {
    config.validate()?.start().await
}

impl Server {
    /// Starts all parts, waits for a signal, and stops them in reverse order.
    pub async fn start(self) -> anyhow::Result<ExitCode> {
        let Self(config) = self;
        let mut stop = StopSignals::new()?;
        let progress = Progress::new();
        let joined = match &config.members {
            Members::Joined { kubeconfig, contexts, rights } => {
                Some(Joined::read(kubeconfig, contexts, rights.clone()).await?)
            }
            Members::Simulated(_) => None,
        };
        let dir = open(&config.storage)?;
        let api = bind(config.listen, "--listen").await?;
        let ui = bind(config.ui_listen, "--ui-listen").await?;
        progress.done(&format!("data directory {}", dir.root().display()));

        tokio::select! {
            biased;
            () = stop.wait() => Ok(ExitCode::from(130)),
            started = Fleet::start(&config, joined, &dir, (api, ui), &progress) => {
                let fleet = started?;
                // A closed output (`up | head`) must not stop the fleet.
                if let Err(error) = fleet.banner(&mut std::io::stdout().lock()) {
                    tracing::warn!(%error, "cannot print the banner");
                }
                progress.done("ready");
                stop.wait().await;
                let stopping = Instant::now();
                progress.begin("stopping");
                // A second signal aborts the drain.
                tokio::select! {
                    stopped = fleet.stop() => stopped?,
                    () = stop.wait() => bail!("stopped before the drain was complete"),
                }
                progress.done_since("stopped", stopping);
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// Runs the control plane's API alone (`crowsnest apiserver`).
pub async fn run_apiserver(config: ApiserverConfig) -> anyhow::Result<ExitCode> {
    let mut stop = StopSignals::new()?;
    let dir = open(&config.storage)?;
    let listener = bind(config.listen, "--listen").await?;
    let nobody = Arc::new(OnceLock::from(BTreeMap::new()));
    let (auditor, audit) = config.audit.start(dir.dir("audit")?)?;
    let own =
        ControlPlaneOptions { auditor, disabled_admission: config.disabled_admission, in_flight: config.in_flight };
    let control_plane = ControlPlane::start(&dir, listener, nobody, config.oidc, own).await?;
    let mut files = Kubeconfigs::new(dir.dir("kubeconfigs")?);
    files.add("cp", &control_plane.kubeconfig()?)?;
    let path = files.finish()?;
    writeln!(std::io::stdout(), "export KUBECONFIG={}", path.display())?;
    stop.wait().await;
    let stopped = control_plane.stop().await;
    written(audit).await;
    stopped.map(|()| ExitCode::SUCCESS)
}

/// Flushes the audit log after the servers have stopped.
async fn written(audit: Option<Writer>) {
    if let Some(audit) = audit {
        audit.stop().await;
    }
}

fn open(storage: &DataDirConfig) -> anyhow::Result<DataDir> {
    Ok(DataDir::open(&storage.data_dir, storage.reset)?)
}

/// Reports whether the OIDC issuer is reachable. It is contacted again for each sign-in.
async fn report_issuer(oidc: &Oidc, progress: &Progress) {
    let issuer = oidc.settings().issuer_url();
    match oidc.issuer().published().await {
        Ok(_) => progress.done(&format!("sign-in with {issuer}")),
        Err(error) => progress.warn(&format!("sign-in with {issuer} is not available yet: {}", whole(&error))),
    }
}

/// All parts of a running fleet.
struct Fleet {
    control_plane: ControlPlane,
    members: members::Members,
    roles: Arc<Roles>,
    servers: Tasks,
    audit: Option<Writer>,
    ui: SocketAddr,
    token: String,
    kubeconfig: PathBuf,
}

impl Fleet {
    async fn start(
        config: &Config,
        joined: Option<Joined>,
        dir: &DataDir,
        (api, ui_listener): (TcpListener, TcpListener),
        progress: &Progress,
    ) -> anyhow::Result<Self> {
        let (controllers, oidc) = (config.controllers.clone(), config.oidc.clone());
        let ui_address = ui_listener.local_addr()?;
        let simulated = admin::Members::default();
        let sign_in = oidc.as_ref().map(|_| config.sign_in.validate(ui_address)).transpose()?;
        let (auditor, audit) = config.api.audit.start(dir.dir("audit")?)?;
        let control_plane =
            ControlPlane::start(dir, api, simulated.clone(), oidc.clone(), ControlPlaneOptions::new(auditor.clone()))
                .await?;
        progress.done(&format!("control plane {}", control_plane.url()));

        let servers = Tasks::default();
        control_plane.watch_tasks(servers.clone());
        let serving = servers.stopping();
        let roles = Arc::new(Roles::default());
        let members = members::Members::start(config, joined, dir, progress).await?;
        simulated.get_or_init(|| members.simulated());
        progress.done(&format!("{} members", members.len()));

        // Written first, so that kubectl can be used while the start is in progress.
        let mut files = Kubeconfigs::new(dir.dir("kubeconfigs")?);
        let own = files.add("cp", &control_plane.kubeconfig()?)?;
        let mut reloader = config.api.reloader();
        let middleware = config.api.middleware(auditor, reloader.counts());
        let requests = middleware.metrics.requests.clone();
        let trusted = (&config.api, &mut reloader);
        let settings = (&controllers, config.metrics_adapter);
        control_plane.install(&roles, middleware, trusted, settings, &servers).await?;
        if config.is_conformance {
            // The recorded fleet grants these permissions to this administrator.
            crowsnest_install::apply_all(&control_plane.client(), &[crowsnest_install::proxy_admin("admin")]).await?;
        }
        let seal = config.ui.seal(dir, &mut reloader).await?;
        servers.keep("reload of files", reloader.run(serving.clone()));
        progress.done("aggregated APIs, webhooks");

        let upstream = crowsnest_component_base::kubeconfig::config_of(own).await?;
        members.join(&control_plane.client(), dir, &mut files, progress).await?;
        let kubeconfig = files.finish()?;
        progress.done("members joined");

        let cache = IndexOptions { data_dir: dir.dir("cache")?, ..config.cache.clone() };
        let has_cluster_status = controllers.controllers.is_enabled("clusterStatus");
        let roles_config = RolesConfig {
            cache,
            controllers,
            leader_election_mode: LeaderElectionMode::Always,
            requests,
            local_endpoints: true,
        };
        roles.start(control_plane.client(), roles_config).await?;
        if has_cluster_status {
            members.looked_at(&control_plane.client(), progress).await;
        }
        progress.done("cache, controllers");

        let oidc = match oidc.zip(sign_in) {
            Some((oidc, client)) => {
                report_issuer(&oidc, progress).await;
                Some(SignIn::new(oidc, client, seal.clone(), servers.passing().clone()))
            }
            None => None,
        };
        let tunnels = crowsnest_ui::Tunnels { tasks: servers.passing().clone(), stopping: serving.clone() };
        let ui = Ui::new(upstream, seal, false, &config.ui.hosts, tunnels)?.with_oidc(oidc);
        servers.keep("--ui-listen", serving::serve(ui_listener, None, crowsnest_ui::router(ui), serving.clone()));
        if let Some(load) = &config.load {
            members.load(load, progress).await?;
        }
        let token = control_plane.token().to_owned();
        Ok(Self { control_plane, members, roles, servers, audit, ui: ui_address, token, kubeconfig })
    }

    /// Prints commands to try; the last line is a search.
    fn banner(&self, out: &mut impl Write) -> std::io::Result<()> {
        let server = self.control_plane.url();
        writeln!(out, "UI     http://{}/#token={}", self.ui, self.token)?;
        writeln!(out, "\nexport KUBECONFIG={}\n", self.kubeconfig.display())?;
        writeln!(out, "Try")?;
        writeln!(out, "  kubectl get clusters")?;
        writeln!(out, "  kubectl create deployment web --image=nginx:1.27   # then write it a PropagationPolicy")?;
        if let Some((member, file)) = self.members.first(&self.kubeconfig) {
            let theirs = format!("--kubeconfig {} ", file.display());
            let theirs = if file == self.kubeconfig { "" } else { &theirs };
            writeln!(out, "  kubectl {theirs}--context {member} get pods -A")?;
            let proxied = format!("{server}/apis/cluster.karmada.io/v1alpha1/clusters/{member}/proxy");
            writeln!(out, "  kubectl --server {proxied} get nodes")?;
        }
        writeln!(out, "  crowsnest search 'kind:node status:Ready'")?;
        out.flush()
    }

    /// Stops servers first, then members and control plane.
    async fn stop(self) -> anyhow::Result<()> {
        self.roles.stop().await;
        self.servers.stop().await;
        let members = self.members.stop().await;
        let control_plane = self.control_plane.stop().await;
        written(self.audit).await;
        members.and(control_plane)
    }
}
