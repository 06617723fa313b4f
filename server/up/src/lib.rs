//! `crowsnest up`: a fleet in one process. Starts the parts in order of dependency, reports progress, waits for a
//! signal and stops them in reverse order.

mod config;
mod controlplane;
pub mod fleet;
mod joined;
mod kubeconfigs;
pub mod member_process;
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
use crowsnest_apiserver::authn::oidc::format_error_chain;
use crowsnest_component_base::tasks::Tasks;
use crowsnest_index::CacheOptions;
use crowsnest_kube_apiserver::RequestOptions;
use crowsnest_process::data_dir::DataDir;
use crowsnest_process::serving::{self, bind};
use crowsnest_process::signals::StopSignals;
use crowsnest_sim::member::admin;
use tokio::net::TcpListener;

pub use config::{ApiserverConfig, Config, DataDirConfig, MemberConfig, Members};
use controlplane::ControlPlane;
use crowsnest_runtime::controller_runner::LeaderElectionMode;
use crowsnest_runtime::roles::{Roles, RolesConfig};
use crowsnest_ui::Ui;
use crowsnest_ui::oidc::SignIn;
use joined::JoinedClusters;
use kubeconfigs::Kubeconfigs;
use progress::Progress;

/// The validated configuration of a fleet.
pub struct Server(Config);

/// Runs a fleet until the process receives a signal.
pub async fn run(config: Config) -> anyhow::Result<ExitCode> {
    config.validate()?.run().await
}

impl Server {
    /// Starts all parts, waits for a signal, and stops the parts in reverse order.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let Self(config) = self;
        let mut stop = StopSignals::new()?;
        let progress = Progress::new();
        let joined = match &config.members {
            Members::Joined { kubeconfig, contexts, permissions } => {
                Some(JoinedClusters::read(kubeconfig, contexts, permissions.clone()).await?)
            }
            Members::Simulated(_) => None,
        };
        let dir = open_data_dir(&config.storage)?;
        let api = bind(config.listen, "--listen").await?;
        let ui = bind(config.ui_listen, "--ui-listen").await?;
        progress.report_done(&format!("data directory {}", dir.root().display()));

        tokio::select! {
            biased;
            () = stop.wait() => Ok(ExitCode::from(130)),
            started = Fleet::start(&config, joined, &dir, (api, ui), &progress) => {
                let fleet = started?;
                // A closed output (`up | head`) must not stop the fleet.
                if let Err(error) = fleet.print_banner(&mut std::io::stdout().lock()) {
                    tracing::warn!(%error, "cannot print the banner");
                }
                progress.report_done("ready");
                stop.wait().await;
                let stop_time = Instant::now();
                progress.begin("stopping");
                // A second signal aborts the drain.
                tokio::select! {
                    stopped = fleet.stop() => stopped?,
                    () = stop.wait() => bail!("stopped before the drain was complete"),
                }
                progress.report_done_since("stopped", stop_time);
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// Runs the control plane's API alone (`crowsnest apiserver`).
pub async fn run_apiserver(config: ApiserverConfig) -> anyhow::Result<ExitCode> {
    let mut stop = StopSignals::new()?;
    let dir = open_data_dir(&config.storage)?;
    let listener = bind(config.listen, "--listen").await?;
    let no_members = Arc::new(OnceLock::from(BTreeMap::new()));
    let (auditor, audit) = config.audit.start(dir.dir("audit")?)?;
    let requests = RequestOptions {
        auditor,
        disabled_admission_plugins: config.disabled_admission_plugins,
        in_flight: config.in_flight,
    };
    let control_plane = ControlPlane::start(&dir, listener, no_members, config.oidc, requests).await?;
    let mut kubeconfigs = Kubeconfigs::new(dir.dir("kubeconfigs")?);
    kubeconfigs.add("cp", &control_plane.kubeconfig()?)?;
    let path = kubeconfigs.finish()?;
    writeln!(std::io::stdout(), "export KUBECONFIG={}", path.display())?;
    stop.wait().await;
    let stopped = control_plane.stop().await;
    flush_audit_log(audit).await;
    stopped.map(|()| ExitCode::SUCCESS)
}

/// Flushes the audit log after the servers have stopped.
async fn flush_audit_log(audit: Option<Writer>) {
    if let Some(audit) = audit {
        audit.stop().await;
    }
}

fn open_data_dir(storage: &DataDirConfig) -> anyhow::Result<DataDir> {
    Ok(DataDir::open(&storage.data_dir, storage.reset)?)
}

/// Reports whether the OIDC issuer is reachable. A failure is not final: each sign-in contacts the issuer again.
async fn report_issuer(oidc: &Oidc, progress: &Progress) {
    let issuer = oidc.settings().issuer_url();
    match oidc.issuer().documents().await {
        Ok(_) => progress.report_done(&format!("sign-in with {issuer}")),
        Err(error) => {
            progress.warn(&format!("sign-in with {issuer} is not available yet: {}", format_error_chain(&error)))
        }
    }
}

/// The servers, tasks and members of a running fleet.
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
        joined: Option<JoinedClusters>,
        dir: &DataDir,
        (api, ui_listener): (TcpListener, TcpListener),
        progress: &Progress,
    ) -> anyhow::Result<Self> {
        let (controllers, oidc) = (config.controllers.clone(), config.oidc.clone());
        let ui_address = ui_listener.local_addr()?;
        let simulated = admin::Members::default();
        let sign_in = oidc.as_ref().map(|_| config.sign_in.build_client(ui_address)).transpose()?;
        let (auditor, audit) = config.api.audit.start(dir.dir("audit")?)?;
        let requests = RequestOptions { auditor: auditor.clone(), ..RequestOptions::default() };
        let control_plane = ControlPlane::start(dir, api, simulated.clone(), oidc.clone(), requests).await?;
        progress.report_done(&format!("control plane {}", control_plane.url()));

        let servers = Tasks::default();
        control_plane.watch_tasks(servers.clone());
        let stop = servers.stop_token();
        let roles = Arc::new(Roles::default());
        let members = members::Members::start(config, joined, dir, progress).await?;
        simulated.get_or_init(|| members.simulated_members());
        progress.report_done(&format!("{} members", members.len()));

        // The kubeconfig is written first, so that kubectl can be used while the other parts start.
        let mut kubeconfigs = Kubeconfigs::new(dir.dir("kubeconfigs")?);
        let control_plane_kubeconfig = kubeconfigs.add("cp", &control_plane.kubeconfig()?)?;
        let mut reloader = config.api.reloader();
        let middleware = config.api.middleware(auditor, reloader.counts());
        let requests = middleware.metrics.requests.clone();
        let reload = (&config.api, &mut reloader);
        let settings = (&controllers, config.metrics_adapter);
        control_plane.install(&roles, middleware, reload, settings, &servers).await?;
        if config.is_conformance {
            // In the fleet on which the conformance scenarios were recorded, this administrator has these permissions.
            crowsnest_install::apply_all(&control_plane.client(), &[crowsnest_install::proxy_admin_binding("admin")])
                .await?;
        }
        let cookie_seal = config.ui.load_seal(dir, &mut reloader).await?;
        servers.spawn_until_stop("file reload", reloader.run(stop.clone()));
        progress.report_done("aggregated APIs, webhooks");

        let upstream = crowsnest_component_base::kubeconfig::config_from_content(control_plane_kubeconfig).await?;
        members.join(&control_plane.client(), dir, &mut kubeconfigs, progress).await?;
        let kubeconfig = kubeconfigs.finish()?;
        progress.report_done("members joined");

        let cache = CacheOptions { data_dir: dir.dir("cache")?, ..config.cache.clone() };
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
            members.wait_for_first_status(&control_plane.client(), progress).await;
        }
        progress.report_done("cache, controllers");

        let oidc = match oidc.zip(sign_in) {
            Some((oidc, client)) => {
                report_issuer(&oidc, progress).await;
                Some(SignIn::new(oidc, client, cookie_seal.clone(), servers.tracker().clone()))
            }
            None => None,
        };
        let tasks = servers.tracker().clone();
        let connections = crowsnest_ui::UpgradedConnections { tasks, stop: stop.clone() };
        let ui = Ui::new(upstream, cookie_seal, false, &config.ui.hosts, connections)?.with_oidc(oidc);
        servers
            .spawn_until_stop("--ui-listen", serving::serve(ui_listener, None, crowsnest_ui::router(ui), stop.clone()));
        if let Some(load) = &config.load {
            members.start_load(load, progress).await?;
        }
        let token = control_plane.token().to_owned();
        Ok(Self { control_plane, members, roles, servers, audit, ui: ui_address, token, kubeconfig })
    }

    /// Prints the address of the UI and commands to try.
    fn print_banner(&self, out: &mut impl Write) -> std::io::Result<()> {
        let server = self.control_plane.url();
        writeln!(out, "UI     http://{}/#token={}", self.ui, self.token)?;
        writeln!(out, "\nexport KUBECONFIG={}\n", self.kubeconfig.display())?;
        writeln!(out, "Try")?;
        writeln!(out, "  kubectl get clusters")?;
        writeln!(out, "  kubectl create deployment web --image=nginx:1.27   # then apply a PropagationPolicy for it")?;
        if let Some((member, file)) = self.members.first(&self.kubeconfig) {
            let flag = format!("--kubeconfig {} ", file.display());
            let flag = if file == self.kubeconfig { "" } else { &flag };
            writeln!(out, "  kubectl {flag}--context {member} get pods -A")?;
            let proxy_url = format!("{server}/apis/cluster.karmada.io/v1alpha1/clusters/{member}/proxy");
            writeln!(out, "  kubectl --server {proxy_url} get nodes")?;
        }
        writeln!(out, "  crowsnest search 'kind:node status:Ready'")?;
        out.flush()
    }

    /// Stops the roles and servers, then the members, the control plane and the audit log.
    async fn stop(self) -> anyhow::Result<()> {
        self.roles.stop().await;
        self.servers.stop().await;
        let members = self.members.stop().await;
        let control_plane = self.control_plane.stop().await;
        flush_audit_log(self.audit).await;
        members.and(control_plane)
    }
}
