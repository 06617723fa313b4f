//! HTTPS client for interpreter webhooks. Each webhook has its own client with its own CA bundle.

use std::time::Duration;

use bytes::Bytes;
use crowsnest_apimachinery::request::MAX_REQUEST_BODY_BYTES;
use crowsnest_component_base::{body, tls};
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{Request, Uri};
use http_body_util::Full;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as HttpError};
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::Value;

use super::services::{ServiceError, ServiceReference, Services};

type HttpsClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

const HTTPS_PORT: u16 = 443;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle timeout of pooled connections.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const KEEPALIVE_IDLE_TIME: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

/// An invalid `clientConfig` of a webhook.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("webhook configuration must have either service or URL")]
    NoAddress,
    #[error("Unparsable URL: {0}")]
    Url(String),
    #[error("unable to load root certificates: {0}")]
    CaBundle(String),
    #[error("TLS: {0}")]
    Tls(String),
}

/// Failure of a webhook call, with client-go's messages.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("Post {url:?}: {source}")]
    Service {
        url: String,
        #[source]
        source: ServiceError,
    },
    #[error("Post {url:?}: {reason}")]
    Http {
        url: String,
        reason: String,
        #[source]
        source: Box<HttpError>,
    },
    #[error("Post {url:?}: context deadline exceeded")]
    Deadline { url: String },
    #[error("{0}")]
    Request(#[from] http::Error),
    #[error("{0}")]
    Status(String),
    #[error("cannot read the response: {0}")]
    Body(String),
    #[error("couldn't get version/kind; json parse error: {0}")]
    Json(#[source] serde_json::Error),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum WebhookAddress {
    Url { authority: String },
    Service(ServiceReference),
}

/// A client for one webhook.
pub(super) struct WebhookClient {
    address: WebhookAddress,
    path: String,
    client: HttpsClient,
}

impl WebhookClient {
    /// Builds a client without connecting. If both are set, the service takes precedence over the URL.
    pub fn new(config: &WebhookClientConfig) -> Result<Self, ConfigError> {
        let (address, path) = match (&config.service, &config.url) {
            (Some(service), _) => {
                let port = service.port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
                let reference = ServiceReference {
                    namespace: service.namespace.clone(),
                    name: service.name.clone(),
                    port: port.unwrap_or(HTTPS_PORT),
                };
                (WebhookAddress::Service(reference), service.path.clone().unwrap_or_default())
            }
            (None, Some(url)) => {
                let url_error = |reason: String| ConfigError::Url(format!("parse {url:?}: {reason}"));
                let uri: Uri = url.parse().map_err(|error: http::uri::InvalidUri| url_error(error.to_string()))?;
                let authority = uri.authority().ok_or_else(|| url_error("no host in URL".to_owned()))?.to_string();
                (WebhookAddress::Url { authority }, uri.path().to_owned())
            }
            (None, None) => return Err(ConfigError::NoAddress),
        };
        let bundle = config.ca_bundle.as_ref().map(|bundle| bundle.0.as_slice()).unwrap_or_default();
        let client = build_client(bundle, &address)?;
        Ok(WebhookClient { address, path: normalize_path(&path), client })
    }

    /// Posts a request and returns the response body, within the timeout.
    pub async fn post(&self, services: &dyn Services, body: Vec<u8>, timeout: Duration) -> Result<Value, CallError> {
        let query = format!("timeout={}s", timeout.as_secs());
        let host = match &self.address {
            WebhookAddress::Url { authority } => authority.clone(),
            WebhookAddress::Service(service) => format!("{}:{}", service.server_name(), service.port),
        };
        let display_url = format!("https://{host}{}?{query}", self.path);
        match tokio::time::timeout(timeout, self.exchange(services, body, &host, &query, &display_url)).await {
            Ok(result) => result,
            Err(_) => Err(CallError::Deadline { url: display_url }),
        }
    }

    async fn exchange(
        &self,
        services: &dyn Services,
        body: Vec<u8>,
        host: &str,
        query: &str,
        display_url: &str,
    ) -> Result<Value, CallError> {
        let address = match &self.address {
            WebhookAddress::Url { authority } => authority.clone(),
            WebhookAddress::Service(service) => resolve(services, service)
                .await
                .map_err(|source| CallError::Service { url: display_url.to_owned(), source })?,
        };
        let request = Request::post(format!("https://{address}{}?{query}", self.path))
            .header(HOST, host)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, */*")
            .header(USER_AGENT, "crowsnest")
            .body(Full::new(Bytes::from(body)))?;
        let response = self.client.request(request).await.map_err(|source| CallError::Http {
            url: display_url.to_owned(),
            reason: tls::describe_error(&source, &address),
            source: Box::new(source),
        })?;
        let status = response.status();
        let media = response.headers().get(CONTENT_TYPE).and_then(|media| media.to_str().ok()).unwrap_or_default();
        let is_text = media.starts_with("text/");
        // Responses may be as large as requests.
        let body = body::collect(response.into_body(), MAX_REQUEST_BODY_BYTES).await;
        let body = body.map_err(|error| CallError::Body(error.to_string()))?;
        if !status.is_success() {
            return Err(CallError::Status(crowsnest_apimachinery::response_error::error_message(
                status.as_u16(),
                is_text,
                &body,
            )));
        }
        serde_json::from_slice(&body).map_err(CallError::Json)
    }
}

/// Resolves the current host and port of a Service.
async fn resolve(services: &dyn Services, service: &ServiceReference) -> Result<String, ServiceError> {
    let found = services.find(&service.namespace, &service.name).await;
    let found = found.map_err(ServiceError::Lookup)?;
    let (host, port) = service.endpoint(found.as_ref())?;
    Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

fn build_client(ca_bundle: &[u8], address: &WebhookAddress) -> Result<HttpsClient, ConfigError> {
    let mut config = kube::Config::new(Uri::from_static("https://webhook"));
    if !ca_bundle.is_empty() {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(ca_bundle).collect();
        let certificates = certificates.map_err(|error| ConfigError::CaBundle(error.to_string()))?;
        if certificates.is_empty() {
            return Err(ConfigError::CaBundle("unable to parse bytes as PEM block".to_owned()));
        }
        config.root_cert = Some(certificates.iter().map(|certificate| certificate.to_vec()).collect());
    }
    let tls = tls::kube_client_config(&config).map_err(|error| ConfigError::Tls(error.to_string()))?;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE_IDLE_TIME));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_only();
    let connector = match address {
        WebhookAddress::Url { .. } => builder.enable_http1().wrap_connector(tcp),
        WebhookAddress::Service(service) => {
            let name =
                ServerName::try_from(service.server_name()).map_err(|error| ConfigError::Tls(error.to_string()))?;
            builder.with_server_name_resolver(FixedServerNameResolver::new(name)).enable_http1().wrap_connector(tcp)
        }
    };
    Ok(Client::builder(TokioExecutor::new()).pool_idle_timeout(POOL_IDLE_TIMEOUT).build(connector))
}

/// Normalizes a path: one leading slash, no duplicate or trailing slashes.
fn normalize_path(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    format!("/{}", parts.join("/"))
}
