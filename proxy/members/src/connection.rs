//! A connection to a member: the dialer and a pooled kube client.

use crate::Error;
use crate::credentials::{ConnectionSpec, Token};
use crate::dial::{Dialer, ProxyOptions};
use crate::endpoints::EndpointRules;
use crate::tunnel::Tunnels;
use crowsnest_component_base::requests::{RequestCountLayer, RequestCounters};
use crowsnest_component_base::spans::inject_trace_context;
use crowsnest_component_base::{tls, user_agent};
use http::{HeaderValue, Request};
use kube::Client;
use kube::client::{Body, ConfigExt};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceBuilder;

/// Maximum number of idle connections per member: about as many as the workers that write to one member concurrently. Opening a
/// connection is more expensive than a request.
const MAX_IDLE_CONNECTIONS: usize = 32;

/// An open connection, kept across changes of the Cluster object while its [`ConnectionSpec`] is equal.
#[derive(Clone)]
pub struct Connection {
    spec: Arc<ConnectionSpec>,
    dialer: Dialer,
    client: Client,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Connection {
    /// Prepares TLS and the client, whose requests are counted. Connects lazily. Must run inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// `rules` forbid sending tokens to the endpoint.
    pub fn open(
        spec: ConnectionSpec,
        connect_timeout: Duration,
        tunnels: &Tunnels,
        requests: &RequestCounters,
        rules: EndpointRules,
    ) -> Result<Self, Error> {
        let cluster = spec.cluster.clone();
        let endpoint_error =
            |reason: String| Error::Endpoint { cluster: cluster.clone(), endpoint: spec.endpoint.to_string(), reason };
        rules.check_scheme(&spec.endpoint).map_err(endpoint_error)?;
        let mut config = kube::Config::new(spec.endpoint.clone());
        config.accept_invalid_certs = spec.insecure_skip_tls_verification;
        if let Some(pem) = &spec.ca_bundle {
            let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
            let certificates = certificates.map_err(|e| endpoint_error(format!("caBundle: {e}")))?;
            config.root_cert = Some(certificates.iter().map(|certificate| certificate.to_vec()).collect());
        }
        let tls = |config: &kube::Config| -> Result<Arc<rustls::ClientConfig>, Error> {
            let mut tls = tls::kube_client_config(config).map_err(|e| endpoint_error(e.to_string()))?;
            tls.alpn_protocols = vec![b"http/1.1".to_vec()];
            Ok(Arc::new(tls))
        };
        let member_tls = if spec.endpoint.scheme_str() == Some("http") { None } else { Some(tls(&config)?) };
        let proxy_tls = match &spec.proxy_url {
            Some(url) if url.scheme_str() == Some("https") => Some(tls(&kube::Config::new(url.clone()))?),
            _ => None,
        };
        let proxy = ProxyOptions { url: spec.proxy_url.clone(), headers: spec.proxy_header.clone(), tls: proxy_tls };
        let dialer = Dialer::new(spec.endpoint.clone(), member_tls, proxy, connect_timeout)?;
        let dialer = dialer.with_rules(rules).with_route(spec.route, tunnels, &spec.cluster)?;
        let request_counter = requests.layer(spec.endpoint.authority().map(|host| host.as_str()).unwrap_or_default());
        let client =
            build_client(&config, dialer.clone(), spec.token.as_ref(), request_counter).map_err(endpoint_error)?;
        Ok(Self { spec: Arc::new(spec), dialer, client })
    }

    pub fn spec(&self) -> &ConnectionSpec {
        &self.spec
    }

    /// Opens raw TLS connections for requests and upgraded connections. Requests use an absolute path prefixed by
    /// [`Connection::path_prefix`] and the `Host` header [`Connection::host`].
    pub fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// Host and port for the `Host` header.
    pub fn host(&self) -> &str {
        self.spec.endpoint.authority().map(|authority| authority.as_str()).unwrap_or_default()
    }

    /// Prefix of every request path, without a trailing slash; usually empty.
    pub fn path_prefix(&self) -> &str {
        self.spec.endpoint.path().trim_end_matches('/')
    }

    /// Client with the permissions of Crowsnest's service account.
    pub fn client(&self) -> Client {
        self.client.clone()
    }
}

/// Builds a client without retries and rate limit, because each caller has its own backoff.
fn build_client(
    config: &kube::Config,
    dialer: Dialer,
    token: Option<&Token>,
    request_counter: RequestCountLayer,
) -> Result<Client, String> {
    let authorization = match token {
        Some(token) => {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.reveal())).map_err(|e| e.to_string())?;
            value.set_sensitive(true);
            Some(value)
        }
        None => None,
    };
    let http_client = hyper_util::client::legacy::Builder::new(hyper_util::rt::TokioExecutor::new())
        .pool_idle_timeout(Duration::from_secs(60))
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        .build::<_, Body>(dialer);
    let service = ServiceBuilder::new()
        .layer(request_counter)
        .layer(config.base_uri_layer())
        .map_request(move |mut request: Request<Body>| {
            if let Some(value) = &authorization {
                request.headers_mut().entry(http::header::AUTHORIZATION).or_insert_with(|| value.clone());
            }
            inject_trace_context(request.headers_mut());
            user_agent::set(request.headers_mut());
            request
        })
        .service(http_client);
    Ok(Client::new(service, "default"))
}
