//! API of the crate: configure, start, serve, create clients, stop.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use axum::Router;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::Auditor;
use crowsnest_apiserver::authn::{
    Algorithm, Authority, ClientAuthorities, FRONT_PROXY, ServingCertificates, Tls, TokenSigner, renew,
};
use crowsnest_apiserver::outbound::OutboundClients;
use crowsnest_apiserver::serve;
use crowsnest_builtin::ServiceAllocators;
use crowsnest_component_base::tasks::Tasks;
use crowsnest_component_base::tls::Identity;
use crowsnest_registry::Registry;
use crowsnest_registry::admission::Admission;
use crowsnest_registry::authentication::{AuthenticationConfig, Authenticator};
use crowsnest_registry::authz::{Authorizer, EscalationGuard, aggregate, bootstrap};
use crowsnest_registry::catalog::Catalog;
use crowsnest_registry::error::{Error, Result};
use crowsnest_registry::lifecycle::NamespaceLifecycle;
use crowsnest_registry::resource::ResourceInfo;
use crowsnest_registry::storage::{Durability, HistoryLimits, Journal, MemoryJournal, SqliteJournal, Store};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::addresses;
use crate::admission::{Plugin, WebhookClient, plugins, policy, priority};
use crate::advertise;
use crate::aggregation::Aggregator;
use crate::aggregation::authentication::{self, ClusterAuthenticationInfo};
use crate::crd::controller::CrdController;
use crate::discovery::{Discovery, GIT_VERSION};
use crate::http::client::InProcessService;
use crate::http::{self, ApiState, InFlightLimits};
use crate::services::ClusterServices;

/// Storage of a server's objects and keys.
#[derive(Debug, Clone)]
pub enum Data {
    /// In memory: lost when the process ends.
    Memory,
    /// In a SQLite database in a directory; keys and certificates in its folder `pki`.
    Directory { path: PathBuf, durability: Durability },
}

/// Configuration of a server.
pub struct Config {
    /// Name in certificates and kubeconfigs.
    pub name: String,
    pub data: Data,
    /// The served resources; see `builtin::resources`.
    pub resources: Vec<ResourceInfo>,
    pub history: HistoryLimits,
    pub authentication: AuthenticationConfig,
    /// Signature algorithm of service account tokens; used when the key is generated.
    pub token_signing_algorithm: Algorithm,
    /// DNS names and IP addresses in the serving certificate.
    pub certificate_names: Vec<String>,
    pub requests: RequestOptions,
    /// Kubernetes version reported to clients, such as `v1.36.2`; API and documents are those of `GIT_VERSION`.
    pub version: String,
}

/// Audit, admission and limits of requests.
#[derive(Default)]
pub struct RequestOptions {
    /// Audit log of requests from outside of this process.
    pub auditor: Auditor,
    pub disabled_admission_plugins: Vec<Plugin>,
    pub in_flight: InFlightLimits,
}

impl Config {
    /// Configuration of a server with the built-in kinds.
    pub fn new(name: &str, data: Data) -> Self {
        Self {
            name: name.to_owned(),
            data,
            resources: crowsnest_builtin::resources(),
            history: HistoryLimits::default(),
            authentication: AuthenticationConfig::default(),
            token_signing_algorithm: Algorithm::default(),
            certificate_names: [
                "localhost",
                "127.0.0.1",
                "::1",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
            ]
            .map(String::from)
            .to_vec(),
            requests: RequestOptions::default(),
            version: GIT_VERSION.to_owned(),
        }
    }

    /// Accepts a static bearer token.
    pub fn accept_token(&mut self, token: impl Into<String>, user: UserInfo) {
        self.authentication.tokens.insert(token.into(), user);
    }
}

/// A running API server. Clones share it.
#[derive(Clone)]
pub struct ApiServer {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    api: Arc<ApiState>,
    router: Router,
    authority: Arc<Authority>,
    serving: Arc<ServingCertificates>,
    tls: Tls,
    tasks: Tasks,
    services: Arc<ClusterServices>,
    outbound: Arc<OutboundClients>,
    disabled_admission_plugins: Vec<Plugin>,
}

impl Drop for Inner {
    /// Cancels the tasks of a server that was dropped without `stop`. Tasks that hold the server, such as
    /// controllers, keep it alive.
    fn drop(&mut self) {
        self.tasks.stop_token().cancel();
    }
}

/// Name and file name of the authority for front-proxy certificates; kubeadm uses the same name.
const FRONT_PROXY_AUTHORITY: &str = "front-proxy-ca";

/// Common name of the client certificate for in-process webhooks.
const WEBHOOK_CLIENT: &str = "kube-apiserver-webhook-client";

/// Issues the client certificate for extension API servers.
fn issue_front_proxy_identity(authority: &Authority) -> crowsnest_apiserver::Result<Identity> {
    let issued = authority.issue_client_certificate(FRONT_PROXY, &[])?;
    Ok(Identity { certificate: issued.certificate.into_bytes(), key: issued.key.into_bytes() })
}

/// Keys of the server.
struct Keys {
    /// Signs certificates of users and of the server.
    authority: Authority,
    /// Signs the certificate with which this server calls extension API servers.
    front_proxy_authority: Authority,
    signer: TokenSigner,
}

impl Keys {
    fn generate(name: &str, signing: Algorithm) -> Result<Self> {
        Ok(Self {
            authority: Authority::generate(name)?,
            front_proxy_authority: Authority::generate(FRONT_PROXY_AUTHORITY)?,
            signer: TokenSigner::generate(signing)?,
        })
    }

    /// Opens the keys in a directory and creates those that are missing.
    fn open(pki: &Path, name: &str, signing: Algorithm) -> Result<Self> {
        Ok(Self {
            authority: Authority::open(pki, "ca", name)?,
            front_proxy_authority: Authority::open(pki, FRONT_PROXY_AUTHORITY, FRONT_PROXY_AUTHORITY)?,
            signer: TokenSigner::open(pki, signing)?,
        })
    }

    /// Authorities and names that extension API servers must trust.
    fn authentication_info(&self) -> ClusterAuthenticationInfo {
        ClusterAuthenticationInfo {
            client_ca: self.authority.certificate().to_owned(),
            request_header_ca: self.front_proxy_authority.certificate().to_owned(),
            allowed_names: vec![FRONT_PROXY.to_owned()],
        }
    }

    /// Client certificate authorities that the server's listeners trust.
    fn client_authorities(&self) -> Result<ClientAuthorities> {
        let ClusterAuthenticationInfo { client_ca, request_header_ca, allowed_names } = self.authentication_info();
        let authorities = ClientAuthorities::new(Some(&request_header_ca), allowed_names, Some(&client_ca));
        Ok(authorities.map_err(crowsnest_apiserver::Error::from)?)
    }
}

impl ApiServer {
    /// Opens the storage, writes default objects and starts the server's tasks. It does not listen yet. Fails if the
    /// storage or the keys cannot be opened, or the default objects cannot be written.
    pub async fn start(config: Config) -> Result<Self> {
        let (journal, keys): (Box<dyn Journal>, _) = match &config.data {
            Data::Memory => {
                (Box::<MemoryJournal>::default(), Keys::generate(&config.name, config.token_signing_algorithm)?)
            }
            Data::Directory { path, durability } => {
                let journal = SqliteJournal::open(path, *durability).await?;
                let (pki, name, signing) = (path.join("pki"), config.name.clone(), config.token_signing_algorithm);
                // Generating keys is slow at the first start.
                let keys = tokio::task::spawn_blocking(move || Keys::open(&pki, &name, signing)).await??;
                (Box::new(journal), keys)
            }
        };
        let store = Store::open(journal, config.history).await?;
        let registry = Arc::new(Registry::new(store, Catalog::new(config.resources)));
        let tasks = Tasks::default();
        let stop_token = tasks.stop_token().clone();
        let (authentication_info, client_authorities) = (keys.authentication_info(), keys.client_authorities()?);
        let Keys { authority, front_proxy_authority, signer } = keys;
        let signer = Arc::new(signer);
        let authenticator = Arc::new(Authenticator::new(registry.clone(), signer, config.authentication));
        let authorizer = Arc::new(Authorizer::new(registry.clone()));
        let create_authorizer: Weak<Authorizer> = Arc::downgrade(&authorizer);
        registry.set_create_authorizer(create_authorizer);
        let discovery = Discovery::new(registry.clone(), config.version);
        let RequestOptions { auditor, disabled_admission_plugins, in_flight } = config.requests;
        let api = ApiState::new(discovery, authenticator, authorizer, auditor, in_flight, stop_token.clone());
        let api = Arc::new(api);
        let authority = Arc::new(authority);
        let serving = ServingCertificates::new(&authority.issue_serving_certificate(&config.certificate_names)?)?;
        let tls = Tls::new(serving.clone(), client_authorities)?;
        let services = Arc::new(ClusterServices::new(&registry));
        let outbound =
            Arc::new(OutboundClients::new(services.clone(), Some(issue_front_proxy_identity(&front_proxy_authority)?)));
        let server = Self {
            inner: Arc::new(Inner {
                name: config.name,
                router: http::build_service(api.clone()),
                api,
                authority: authority.clone(),
                serving: serving.clone(),
                tls,
                tasks: tasks.clone(),
                services,
                outbound: outbound.clone(),
                disabled_admission_plugins,
            }),
        };
        server.set_admission(Vec::new());
        if let Some(services) = registry.catalog.get(&Gvr::new("", "v1", "services")) {
            let allocators = ServiceAllocators::new(&registry.list_all(&services).await?);
            registry.set_allocators("", "services", Arc::new(allocators));
        }
        bootstrap::ensure_defaults(&registry).await?;
        priority::write_system_classes(&registry).await?;
        addresses::ensure_service_cidr(&registry).await?;
        aggregate::aggregate_all(&registry).await?;
        server.watch_tasks(tasks.clone());
        tasks.spawn_until_stop("aggregation of ClusterRoles", aggregate::run(registry.clone(), stop_token.clone()));
        // Ends at once if IPAddresses are not served.
        tasks.spawn("addresses of Services", addresses::run(registry.clone(), stop_token.clone()));
        tasks.spawn_until_stop(
            "status of admission policies",
            policy::status::run(registry.clone(), stop_token.clone()),
        );
        let (names, renewed_outbound) = (config.certificate_names, outbound.clone());
        tasks.spawn_until_stop("renewal of certificates", async move {
            let renew_serving = authority.renew(&serving, &names, &stop_token);
            let renew_front_proxy = renew("the front proxy's certificate", &stop_token, || {
                renewed_outbound.set_front_proxy_identity(issue_front_proxy_identity(&front_proxy_authority)?);
                Ok(())
            });
            tokio::join!(renew_serving, renew_front_proxy);
        });
        server.start_extensions(registry, outbound, authentication_info).await?;
        Ok(server)
    }

    /// Starts the CRD controller and the aggregation layer.
    async fn start_extensions(
        &self,
        registry: Arc<Registry>,
        outbound: Arc<OutboundClients>,
        authentication_info: ClusterAuthenticationInfo,
    ) -> Result<()> {
        let (tasks, stop_token) = (&self.inner.tasks, self.inner.tasks.stop_token());
        let webhooks = Arc::new(WebhookClient::new(outbound.clone()));
        let crd_controller = CrdController::start(registry.clone(), webhooks).await?;
        let aggregator = Aggregator::new(registry.clone(), outbound, stop_token.clone())?;
        self.inner.api.add_delegate(aggregator.clone());
        authentication::publish(&registry, &authentication_info).await?;
        tasks.spawn_until_stop("CustomResourceDefinitions", crd_controller.run(stop_token.clone()));
        tasks.spawn_until_stop("APIServices", aggregator.run());
        Ok(())
    }

    /// Issues a client certificate for calls to webhooks at an address (`host:port`) and renews it until the server
    /// stops. It is not presented to other servers. Returns the certificate of its authority in PEM; the authority
    /// signs nothing else and is not stored.
    pub fn identify_to_webhooks(&self, address: &str) -> Result<String> {
        let authority = Authority::generate("webhook-clients")?;
        let certificate = authority.certificate().to_owned();
        let (outbound, address) = (self.inner.outbound.clone(), address.to_owned());
        let set_identity = move || {
            let issued = authority.issue_client_certificate(WEBHOOK_CLIENT, &[])?;
            let identity = Identity { certificate: issued.certificate.into_bytes(), key: issued.key.into_bytes() };
            outbound.set_webhook_identity(&address, identity);
            Ok(())
        };
        set_identity()?;
        let stop_token = self.stop_token();
        let renewal = async move { renew("the certificate for webhooks", &stop_token, set_identity).await };
        self.spawn("renewal of the certificate for webhooks", renewal);
        Ok(certificate)
    }

    /// The resolver of Services. Extension servers and webhooks of this process are mounted in its field `in_process`.
    pub fn services(&self) -> &Arc<ClusterServices> {
        &self.inner.services
    }

    /// Sets additional admission plugins. They run after those that run first in every server (namespace lifecycle,
    /// RBAC escalation) and before the others (limits, priority, tolerations, webhooks, quota).
    pub fn set_admission(&self, additional: Vec<Arc<dyn Admission>>) {
        let registry = &self.inner.api.registry;
        let mut chain: Vec<Arc<dyn Admission>> = vec![
            Arc::new(NamespaceLifecycle::new(registry)),
            Arc::new(EscalationGuard::new(self.inner.api.authorizer.clone())),
        ];
        chain.extend(additional);
        chain.extend(plugins(
            registry,
            &self.inner.api.authorizer,
            &self.inner.outbound,
            &self.inner.disabled_admission_plugins,
        ));
        registry.set_admission(chain);
    }

    /// Name of the server in certificates and kubeconfigs.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The registry, for components in the same process.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.inner.api.registry
    }

    /// The handlers of HTTP requests, with discovery, authentication and authorization.
    pub fn api(&self) -> &Arc<ApiState> {
        &self.inner.api
    }

    /// The certificate authority of users and of the server's listeners.
    pub fn authority(&self) -> &Arc<Authority> {
        &self.inner.authority
    }

    /// The certificates of the server's listeners.
    pub fn serving_certificates(&self) -> &Arc<ServingCertificates> {
        &self.inner.serving
    }

    /// TLS configuration for an additional listener, which trusts the same clients.
    pub fn tls(&self, serving: Arc<ServingCertificates>) -> crowsnest_apiserver::Result<Tls> {
        Tls::new(serving, ClientAuthorities::clone(&self.inner.tls.clients))
    }

    /// The complete HTTP service, which authenticates requests by their credentials.
    pub fn router(&self) -> Router {
        self.inner.router.clone()
    }

    /// The HTTP service with a fixed user, without a socket.
    pub fn service(&self, user: UserInfo) -> InProcessService {
        InProcessService::new(self.router(), user, self.stop_token())
    }

    /// A kube client with a fixed user, without a socket.
    pub fn client(&self, user: UserInfo) -> kube::Client {
        self.service(user).into_client()
    }

    /// A kube client with all permissions, as a member of `system:masters`.
    pub fn admin(&self) -> kube::Client {
        let groups = vec![crowsnest_apimachinery::user::MASTERS.to_owned()];
        self.client(UserInfo { name: "system:admin".into(), groups, ..UserInfo::default() })
    }

    /// A kubeconfig with a new client certificate. `server_url` is `https://host:port`.
    pub fn kubeconfig(&self, user: &str, groups: &[String], server_url: &str) -> Result<String> {
        let credentials = self.inner.authority.issue_client_certificate(user, groups)?;
        Ok(self.inner.authority.kubeconfig(&self.inner.name, server_url, &credentials))
    }

    /// Runs a task that is cancelled when the server stops. A panic makes the server unready.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.inner.tasks.spawn(name, task);
    }

    /// Makes the server unready if one of these tasks stops unexpectedly.
    pub fn watch_tasks(&self, tasks: Tasks) {
        self.inner.api.discovery.health.watch_tasks(tasks);
    }

    /// Token that is cancelled when the server stops.
    pub fn stop_token(&self) -> CancellationToken {
        self.inner.tasks.stop_token().clone()
    }

    /// Publishes the address of this server in the Service `kubernetes`.
    pub async fn advertise(&self, address: SocketAddr) {
        // As with kube-apiserver, a failure does not affect the server.
        if let Err(error) = advertise::write(self.registry(), address).await {
            tracing::warn!(%error, "cannot write the Service kubernetes");
        }
    }

    /// Serves HTTPS on a socket until cancelled or stopped. Then it ends watches and completes running requests.
    pub async fn serve(&self, listener: TcpListener, stop: CancellationToken) -> Result<()> {
        self.serve_with_routes(Router::new(), listener, stop).await
    }

    /// Like [`Self::serve`], with additional routes that take precedence and authenticate requests themselves.
    pub async fn serve_with_routes(
        &self,
        routes: Router,
        listener: TcpListener,
        stop: CancellationToken,
    ) -> Result<()> {
        let router = routes.fallback_service(self.router());
        let address = listener.local_addr();
        if let Ok(address) = address {
            self.advertise(address).await;
        }
        let io = |source| Error::Io { path: PathBuf::from(format!("{address:?}")), source };
        let stop_either = self.stop_token().child_token();
        let forwarded_stop = stop_either.clone();
        let forward_cancellation = async move {
            stop.cancelled().await;
            forwarded_stop.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            served = serve::serve(listener, Some(self.inner.tls.clone()), router, stop_either) => served.map_err(io),
            () = forward_cancellation => Ok(()),
        }
    }

    /// Stops watches and tasks, commits queued writes and closes the files. Fails if the writes cannot be committed.
    pub async fn stop(&self) -> Result<()> {
        self.inner.api.discovery.health.drain();
        self.inner.tasks.stop().await;
        self.inner.api.registry.store.close().await
    }
}
