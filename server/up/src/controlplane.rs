//! The embedded control plane of `up`, with the aggregated APIs and webhooks behind it.

use std::sync::Arc;

use anyhow::{Context, bail};
use base64::Engine;
use crowsnest_apimachinery::user::{MASTERS, UserInfo};
use crowsnest_apiserver::authn::token::Algorithm;
use crowsnest_apiserver::authn::{Oidc, ServingCertificates};
use crowsnest_component_base::tasks::Tasks;
use crowsnest_kube_apiserver::controllers::{self, Controllers};
use crowsnest_kube_apiserver::{ApiServer, Config, Data, RequestOptions};
use crowsnest_process::client_ca::{ClientCaUpdater, load_trusted_cas};
use crowsnest_process::data_dir::DataDir;
use crowsnest_process::reload::Reloader;
use crowsnest_process::serving::{self, Tls};
use crowsnest_registry::storage::Durability;
use crowsnest_sim::member::admin;
use serde_json::Value;
use tokio::net::TcpListener;

use crowsnest_aggregated::admission::AdmissionChain;
use crowsnest_aggregated::in_process::InProcessAggregated;
use crowsnest_aggregated::request::authentication::DelegatedAuth;
use crowsnest_aggregated::request::middleware::ApiMiddleware;
use crowsnest_aggregated::resource::registry::REGISTRY;
use crowsnest_aggregated::server::{AggregatedServer, router};
use crowsnest_install::{self, ServingEndpoint};
use crowsnest_runtime::roles::Roles;
use crowsnest_serve::api_config::ApiConfig;
use crowsnest_webhook::clients::Clients;

/// Name of the administrator in Karmada. `cluster-proxy-admin` is bound to this user.
const ADMIN: &str = "system:admin";

pub(super) struct ControlPlane {
    server: ApiServer,
    url: String,
    token: String,
    listener_tasks: Tasks,
}

impl ControlPlane {
    /// Starts the control plane. Its address also serves the requests that inject faults into the members in
    /// `simulated`; `oidc` authenticates ID tokens.
    pub(super) async fn start(
        dir: &DataDir,
        listener: TcpListener,
        simulated: admin::Members,
        oidc: Option<Arc<Oidc>>,
        requests: RequestOptions,
    ) -> anyhow::Result<Self> {
        let token = admin_token(dir)?;
        // Control plane data must survive a power failure; simulated members need not.
        let data = Data::Directory { path: dir.dir("control-plane")?, durability: Durability::Power };
        let mut config = Config { requests, ..Config::new("crowsnest", data) };
        // kube-apiserver's default; clients that check the algorithm expect it.
        config.token_signing_algorithm = Algorithm::Rs256;
        config.authentication.oidc = oidc;
        config.accept_token(
            token.clone(),
            UserInfo {
                name: ADMIN.into(),
                groups: vec![MASTERS.into(), "system:authenticated".into()],
                ..UserInfo::default()
            },
        );
        let address = listener.local_addr()?;
        config.certificate_names.push(address.ip().to_string());
        let server = ApiServer::start(config).await.context("cannot start the control plane")?;
        controllers::start(&server, Controllers::default());
        let admin_routes = admin::routes(simulated, server.api().authenticator.clone());
        let tasks = Tasks::default();
        server.watch_tasks(tasks.clone());
        let (api_server, stop) = (server.clone(), tasks.stop_token().clone());
        tasks.spawn_until_stop("--listen", async move {
            if let Err(error) = api_server.serve_with_routes(admin_routes, listener, stop).await {
                tracing::error!(%error, "the control plane's listener failed");
            }
        });
        Ok(Self { server, url: format!("https://{address}"), token, listener_tasks: tasks })
    }

    /// Makes the control plane unready when one of these tasks dies.
    pub(super) fn watch_tasks(&self, tasks: Tasks) {
        self.server.watch_tasks(tasks);
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The administrator's bearer token.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Client of the administrator, without a socket.
    pub(super) fn client(&self) -> kube::Client {
        self.server.admin()
    }

    pub(super) fn kubeconfig(&self) -> anyhow::Result<String> {
        Ok(self.server.kubeconfig(ADMIN, &[MASTERS.to_owned()], &self.url)?)
    }

    /// Serves the aggregated APIs and webhooks, and registers them in the control plane.
    pub(super) async fn install(
        &self,
        roles: &Arc<Roles>,
        middleware: ApiMiddleware,
        (config, reloader): (&ApiConfig, &mut Reloader),
        (controllers, metrics_adapter): (&crowsnest_controllers::runtime::Config, bool),
        servers: &Tasks,
    ) -> anyhow::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen for the aggregation layer")?;
        let port = listener.local_addr()?.port();
        let client = self.client();
        // The aggregation layer verifies the Service's name, webhook clients the address.
        let names = ["localhost", "127.0.0.1", crowsnest_install::SERVICE_HOST].map(str::to_owned);
        let authority = Arc::clone(self.server.authority());
        let certificates = ServingCertificates::new(&authority.issue_serving_certificate(&names)?)?;
        let trusted_cas = load_trusted_cas(client.clone()).await?;
        let tls = Tls::new(Arc::clone(&certificates), trusted_cas.authorities()?);
        let client_cas = Arc::new(ClientCaUpdater::new(tls.clone(), trusted_cas));
        config
            .watch(
                reloader,
                &client_cas,
                vec![Arc::clone(&certificates), Arc::clone(self.server.serving_certificates())],
            )
            .await?;
        let stop_token = servers.stop_token();
        let (watch_client, stop) = (client.clone(), stop_token.clone());
        servers.spawn_until_stop("client CAs of the listener", async move {
            client_cas.watch_config_map(watch_client, stop).await;
        });
        let (renewed_certificates, stop) = (Arc::clone(&certificates), stop_token.clone());
        servers.spawn_until_stop("renewal of the listener's certificate", async move {
            authority.renew(&renewed_certificates, &names, &stop).await;
        });
        let webhook_url = self.serve_webhooks(&certificates, controllers, &middleware, servers).await?;
        let delegated = DelegatedAuth::new(client.clone());
        let admission = self.admission(&delegated, servers);
        let state = AggregatedServer {
            registry: &REGISTRY,
            control_plane: client.clone(),
            delegated,
            admission,
            roles: Arc::clone(roles),
            middleware,
            metrics_adapter,
        };
        let aggregated = router(state);
        let local = Arc::new(InProcessAggregated(aggregated.clone()));
        self.server.services().in_process.mount(crowsnest_install::SYSTEM_NAMESPACE, crowsnest_install::SERVICE, local);
        servers
            .spawn_until_stop("aggregated APIs", serving::serve(listener, Some(tls), aggregated, stop_token.clone()));

        let ca = self.server.authority().certificate().to_owned();
        // Copy before webhooks are registered for the target kinds.
        let mut report = Vec::new();
        crowsnest_install::stored_kind_migration::copy(&client, &mut report).await?;
        let mut manifests: Vec<Value> = crowsnest_install::base_manifests();
        manifests.extend(crowsnest_install::agents::cluster_info(&self.url, &ca));
        manifests.extend(crowsnest_install::crd_manifests(&webhook_url, &ca));
        manifests.extend(crowsnest_install::admission_manifests(&webhook_url, &ca));
        crowsnest_install::apply_all(&client, &manifests).await?;
        // The lock of the data directory excludes other processes, so no reader of the old definitions is left.
        crowsnest_install::stored_kind_migration::remove(&client, &mut report).await?;
        for line in String::from_utf8_lossy(&report).lines() {
            tracing::info!("{line}");
        }
        // The aggregated kinds are described by the stored ones, which must be served first.
        let groups = crowsnest_install::resolve_groups(&client, metrics_adapter).await?;
        let endpoint = ServingEndpoint { host: "localhost".into(), port, ca };
        let aggregation = crowsnest_install::aggregation_manifests(&endpoint, &groups);
        crowsnest_install::apply_all(&client, &aggregation).await?;
        crowsnest_install::wait_for_aggregation(&client, &groups).await?;
        Ok(())
    }

    /// The policies and webhooks of this control plane, for the aggregated kinds.
    fn admission(&self, delegated: &DelegatedAuth, servers: &Tasks) -> Arc<AdmissionChain> {
        // Webhooks are called in the same way as by the control plane, which resolves Services to this process.
        let services = Arc::clone(self.server.services());
        let chain = Arc::new(AdmissionChain::new(self.client(), delegated.clone(), services));
        let run = Arc::clone(&chain).run(servers.stop_token().clone());
        servers.spawn_until_stop("policies and webhooks of the control plane", run);
        chain
    }

    /// Serves the webhooks; the handshake accepts only this control plane's API server. Returns their URL.
    async fn serve_webhooks(
        &self,
        certificates: &Arc<ServingCertificates>,
        controllers: &crowsnest_controllers::runtime::Config,
        middleware: &ApiMiddleware,
        servers: &Tasks,
    ) -> anyhow::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen for webhooks")?;
        let address = listener.local_addr()?.to_string();
        let clients = self.server.identify_to_webhooks(&address)?;
        let tls = Tls::with_client_ca(Arc::clone(certificates), &clients)?;
        // Simulated members have endpoints on this host.
        let allow_local_endpoints = true;
        let webhooks = crowsnest_webhook::routes(
            self.client(),
            controllers,
            allow_local_endpoints,
            &middleware.metrics.admissions,
            Clients::Handshake,
        );
        let routes = axum::Router::new().nest("/webhooks", webhooks);
        servers.spawn_until_stop("webhooks", serving::serve(listener, Some(tls), routes, servers.stop_token().clone()));
        Ok(format!("https://{address}/webhooks"))
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.listener_tasks.stop_token().cancel();
        self.server.stop().await.context("cannot close the control plane's storage")?;
        self.listener_tasks.stop().await;
        match self.listener_tasks.failures().as_slice() {
            [] => Ok(()),
            failures => bail!("{}", failures.join("; ")),
        }
    }
}

/// The administrator token: created at the first start and stored in the data directory.
fn admin_token(dir: &DataDir) -> anyhow::Result<String> {
    const FILE: &str = "admin-token.json";
    if let Some(token) = dir.read_state::<String>(FILE) {
        return Ok(token);
    }
    let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
    dir.write_state(FILE, &token)?;
    Ok(token)
}
