//! Calls to other servers: webhooks and extension API servers, by URL or by Service.
//!
//! [`OutboundClients`] keeps pooled HTTPS clients, one per combination of TLS settings, server name and client
//! certificate. A [`ServiceResolver`] finds the endpoint of a Service: in the cluster, by its external name, or inside
//! this process.

mod resolver;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use base64::Engine;
use crowsnest_component_base::tls::{self, Identity};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as HttpError};
use hyper_util::rt::TokioExecutor;
use lru::LruCache;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use serde_json::Value;

pub use resolver::{Endpoint, InProcessServer, InProcessServices, ResolveError, ServiceResolver};

type HttpsClient = Client<HttpsConnector<HttpConnector>, Body>;

/// Maximum number of clients in the pool; the least recently used one is evicted.
const MAX_CLIENTS: usize = 64;
/// Maximum number of idle connections per host.
const MAX_IDLE_PER_HOST: usize = 16;

/// A Service with the port and path to call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceRef {
    pub namespace: String,
    pub name: String,
    pub port: u16,
    /// With a leading slash, or empty.
    pub path: String,
}

impl ServiceRef {
    /// Host name that its serving certificate must have.
    pub fn server_name(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }
}

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ServerAddress {
    Url(String),
    Service(ServiceRef),
}

/// A server and its TLS trust settings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    pub address: ServerAddress,
    /// Certificate authority in PEM; empty means the system roots.
    pub ca_bundle: Vec<u8>,
    /// Accepts any certificate.
    pub insecure: bool,
}

/// Reason why a call failed, worded like the errors of Go's HTTP client.
#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    #[error("clientConfig: {0}")]
    Config(String),
    #[error("{verb} {url:?}: {reason}")]
    Resolve { verb: String, url: String, reason: ResolveError },
    #[error("{verb} {url:?}: {reason}")]
    Call { verb: String, url: String, reason: String },
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("request: {0}")]
    Request(#[from] http::Error),
}

impl Target {
    /// Reads the `clientConfig` of a webhook: `url` or `service`, and `caBundle`.
    pub fn parse(config: &Value) -> Result<Self, OutboundError> {
        let bundle = config.get("caBundle").and_then(Value::as_str).unwrap_or("");
        let ca_bundle = base64::engine::general_purpose::STANDARD
            .decode(bundle)
            .map_err(|e| OutboundError::Config(format!("caBundle: {e}")))?;
        let address = match (config.get("url").and_then(Value::as_str), config.get("service")) {
            (Some(url), _) => ServerAddress::Url(url.to_owned()),
            (None, Some(service)) => ServerAddress::Service(ServiceRef::parse(service)),
            (None, None) => return Err(OutboundError::Config("exactly one of url or service is required".into())),
        };
        Ok(Self { address, ca_bundle, insecure: false })
    }

    /// The URL as error messages show it.
    pub fn url(&self) -> String {
        match &self.address {
            ServerAddress::Url(url) => url.clone(),
            ServerAddress::Service(service) => {
                format!("https://{}:{}{}", service.server_name(), service.port, service.path)
            }
        }
    }
}

impl ServiceRef {
    pub fn parse(service: &Value) -> Self {
        let text = |key: &str| service.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
        let port = service.get("port").and_then(Value::as_u64).and_then(|p| u16::try_from(p).ok()).unwrap_or(443);
        let path = text("path");
        let path = if path.is_empty() || path.starts_with('/') { path } else { format!("/{path}") };
        Self { namespace: text("namespace"), name: text("name"), port, path }
    }
}

#[derive(PartialEq, Eq, Hash)]
struct ClientKey {
    ca_bundle: Vec<u8>,
    insecure: bool,
    server_name: Option<String>,
    client_certificate: ClientCertificate,
    is_upgrade: bool,
}

/// Client certificate that is presented to a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ClientCertificate {
    None,
    /// Front-proxy certificate, for extension API servers.
    FrontProxy,
    /// Certificate for webhooks at this address.
    Webhook(String),
}

/// Pool of HTTPS clients for webhooks and extension API servers.
pub struct OutboundClients {
    resolver: Arc<dyn ServiceResolver>,
    pool: Mutex<ClientPool>,
}

struct ClientPool {
    /// Front-proxy certificate, presented to extension API servers.
    front_proxy_identity: Option<Identity>,
    /// Client certificates for webhooks, by `host:port`.
    webhook_identities: HashMap<String, Identity>,
    clients: LruCache<ClientKey, HttpsClient>,
}

impl std::fmt::Debug for OutboundClients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OutboundClients")
    }
}

impl OutboundClients {
    pub fn new(resolver: Arc<dyn ServiceResolver>, front_proxy_identity: Option<Identity>) -> Self {
        let size = std::num::NonZeroUsize::new(MAX_CLIENTS).unwrap_or(std::num::NonZeroUsize::MIN);
        Self {
            resolver,
            pool: Mutex::new(ClientPool {
                front_proxy_identity,
                webhook_identities: HashMap::new(),
                clients: LruCache::new(size),
            }),
        }
    }

    /// Replaces the front-proxy certificate; connections with the previous one are closed when they become idle.
    pub fn set_front_proxy_identity(&self, identity: Identity) {
        let mut pool = self.pool.lock();
        pool.front_proxy_identity = Some(identity);
        pool.clients.clear();
    }

    /// Sets the certificate that is presented to webhooks at an address (`host:port`), and to no other server.
    pub fn set_webhook_identity(&self, address: &str, identity: Identity) {
        let mut pool = self.pool.lock();
        pool.webhook_identities.insert(address.to_owned(), identity);
        pool.clients.clear();
    }

    /// Sends a review to a webhook, with the client certificate registered for its address, if any.
    pub async fn send_review(
        &self,
        target: &Target,
        request: http::Request<Body>,
    ) -> Result<http::Response<Body>, OutboundError> {
        let address = match &target.address {
            ServerAddress::Url(url) => {
                url.parse::<http::Uri>().ok().and_then(|url| url.authority().map(ToString::to_string))
            }
            ServerAddress::Service(_) => None,
        };
        let webhook_address = address.filter(|address| self.pool.lock().webhook_identities.contains_key(address));
        self.send_with_certificate(
            target,
            request,
            webhook_address.map_or(ClientCertificate::None, ClientCertificate::Webhook),
        )
        .await
    }

    /// Sends a request whose URI is only a path with query, appended to the target's own path. `with_identity` presents
    /// the front-proxy certificate.
    pub async fn send(
        &self,
        target: &Target,
        request: http::Request<Body>,
        with_identity: bool,
    ) -> Result<http::Response<Body>, OutboundError> {
        self.send_with_certificate(
            target,
            request,
            if with_identity { ClientCertificate::FrontProxy } else { ClientCertificate::None },
        )
        .await
    }

    async fn send_with_certificate(
        &self,
        target: &Target,
        mut request: http::Request<Body>,
        client_certificate: ClientCertificate,
    ) -> Result<http::Response<Body>, OutboundError> {
        let suffix = request.uri().path_and_query().map_or(String::new(), ToString::to_string);
        let suffix = if suffix == "/" { "" } else { suffix.as_str() };
        let suffix = suffix.strip_prefix("/?").map_or(suffix.to_owned(), |query| format!("?{query}"));
        let verb = go_verb(request.method());
        let display_url = display_url(&target.url(), &suffix);
        let (base, server_name) = match &target.address {
            ServerAddress::Url(url) => (url.clone(), None),
            ServerAddress::Service(service) => {
                match self.resolver.resolve(&service.namespace, &service.name, service.port) {
                    Err(reason) => return Err(OutboundError::Resolve { verb, url: display_url, reason }),
                    Ok(Endpoint::InProcess(service)) => return Ok(service.serve(request).await),
                    Ok(Endpoint::Address { host, port }) => {
                        let host = if host.contains(':') { format!("[{host}]") } else { host };
                        (format!("https://{host}:{port}{}", service.path), Some(service.server_name()))
                    }
                }
            }
        };
        if let Some(name) = &server_name {
            let host = http::HeaderValue::from_str(name).map_err(http::Error::from)?;
            request.headers_mut().insert(http::header::HOST, host);
        }
        let base = base.trim_end_matches('/');
        let url = format!("{base}{suffix}");
        *request.uri_mut() = url.parse().map_err(|e: http::uri::InvalidUri| OutboundError::Config(e.to_string()))?;
        let is_upgrade = request.headers().contains_key(http::header::UPGRADE);
        let client = self.client(target, server_name.clone(), client_certificate.clone(), is_upgrade)?;
        let address = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let retry = retry_copy(&request);
        let result = match (client.request(request).await, retry) {
            // The retry uses a new connection: the server may have closed all pooled ones.
            (Err(error), Some(retry)) if was_closed_by_server(&error) => {
                self.client(target, server_name, client_certificate, true)?.request(retry).await
            }
            (result, _) => result,
        };
        match result {
            Ok(response) => Ok(response.map(Body::new)),
            Err(error) => {
                Err(OutboundError::Call { verb, url: display_url, reason: tls::describe_error(&error, &address) })
            }
        }
    }

    /// The in-process server that a target resolves to, if any.
    pub fn find_in_process_server(&self, target: &Target) -> Option<Arc<dyn InProcessServer>> {
        let ServerAddress::Service(service) = &target.address else { return None };
        match self.resolver.resolve(&service.namespace, &service.name, service.port) {
            Ok(Endpoint::InProcess(service)) => Some(service),
            Ok(Endpoint::Address { .. }) | Err(_) => None,
        }
    }

    fn client(
        &self,
        target: &Target,
        server_name: Option<String>,
        client_certificate: ClientCertificate,
        is_upgrade: bool,
    ) -> Result<HttpsClient, OutboundError> {
        let mut pool = self.pool.lock();
        let ClientPool { front_proxy_identity, webhook_identities, clients } = &mut *pool;
        let identity = match &client_certificate {
            ClientCertificate::None => None,
            ClientCertificate::FrontProxy => front_proxy_identity.as_ref(),
            ClientCertificate::Webhook(address) => webhook_identities.get(address),
        };
        let key = ClientKey {
            ca_bundle: target.ca_bundle.clone(),
            insecure: target.insecure,
            server_name,
            client_certificate: if identity.is_some() { client_certificate } else { ClientCertificate::None },
            is_upgrade,
        };
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        let config = tls::client_config(&target.ca_bundle, target.insecure, identity)?;
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(Duration::from_secs(10)));
        http.set_nodelay(true);
        // Upgraded connections may be silent for long; keepalive probes detect a lost peer.
        http.set_keepalive(Some(Duration::from_secs(30)));
        http.set_keepalive_interval(Some(Duration::from_secs(10)));
        http.set_keepalive_retries(Some(3));
        let builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
        let connector = match &key.server_name {
            Some(name) => {
                let name = ServerName::try_from(name.clone()).map_err(|e| OutboundError::Config(e.to_string()))?;
                builder
                    .with_server_name_resolver(FixedServerNameResolver::new(name))
                    .enable_http1()
                    .wrap_connector(http)
            }
            None => builder.enable_http1().wrap_connector(http),
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(Duration::from_secs(60))
            // Upgrades use a new connection each, as in kube-apiserver: connections to one address may reach
            // different backends.
            .pool_max_idle_per_host(if key.is_upgrade { 0 } else { MAX_IDLE_PER_HOST })
            .set_host(key.server_name.is_none())
            .build(connector);
        clients.put(key, HttpsClient::clone(&client));
        Ok(client)
    }
}

/// Copy of a request that may be retried: idempotent and without a body. A pooled connection may be closed by the
/// server while the next request is in flight, in which case Go's client retries (net/http, `shouldRetryRequest`).
fn retry_copy(request: &http::Request<Body>) -> Option<http::Request<Body>> {
    use http_body::Body as _;
    let is_read = matches!(*request.method(), http::Method::GET | http::Method::HEAD | http::Method::OPTIONS);
    let has_no_body = request.body().is_end_stream() && !request.headers().contains_key(http::header::UPGRADE);
    (is_read && has_no_body).then(|| {
        let mut retry = http::Request::new(Body::empty());
        *retry.method_mut() = request.method().clone();
        *retry.uri_mut() = request.uri().clone();
        *retry.headers_mut() = request.headers().clone();
        retry
    })
}

/// True if the server closed the connection before it responded.
fn was_closed_by_server(error: &HttpError) -> bool {
    let mut source = error.source();
    while let (Some(inner), false) = (source, error.is_connect()) {
        if inner.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message) {
            return true;
        }
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
            return matches!(io.kind(), BrokenPipe | ConnectionReset | UnexpectedEof);
        }
        source = inner.source();
    }
    false
}

/// The URL that error messages show: `base` and `suffix` joined, with at least `/` as the path.
fn display_url(base: &str, suffix: &str) -> String {
    let base = base.trim_end_matches('/');
    let has_path = base.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
    let slash = if has_path || suffix.starts_with('/') { "" } else { "/" };
    format!("{base}{slash}{suffix}")
}

/// The method as Go's `url.Error` prints it: `Post`, `Get`.
fn go_verb(method: &http::Method) -> String {
    let lower = method.as_str().to_lowercase();
    let mut chars = lower.chars();
    chars.next().map_or(String::new(), |first| first.to_ascii_uppercase().to_string() + chars.as_str())
}
