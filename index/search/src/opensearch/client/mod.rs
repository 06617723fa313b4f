//! Requests to the nodes of a search engine.
//!
//! A request is sent to a healthy node, or to others if it is unreachable. The size of responses is limited, redirects are refused,
//! and credentials are read again when their files change. A request is not repeated on the same node: the caller
//! decides about retries. All requests may be sent twice, because writes carry external versions.

mod credentials;
mod detect;
mod error;
mod hosts;
mod options;
mod resolver;
mod secret;
mod session;

pub use credentials::{Authorization, ClientCertificate, CredentialSource, Credentials};
pub use detect::{Content, DetectedServer, Distribution, SUPPORTED, Server, Version};
pub(crate) use error::ErrorBody;
pub use error::{ClientError, ErrorResponse};
pub use options::{Address, ClientOptions, ProxyChoice};
pub use secret::Secret;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use hosts::HostRotation;
use http::{Method, header};
use parking_lot::Mutex;
use session::Session;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A request to any node.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: Method,
    /// Begins with a slash; reserved characters in parameters are percent-encoded.
    pub path: String,
    pub body: Option<(Content, Bytes)>,
    /// Timeout on one node, in place of [`ClientOptions::request_timeout`].
    pub timeout: Option<Duration>,
}

/// A successful response (2xx).
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    pub body: Bytes,
    /// Value of `X-Elastic-Product`.
    product: Option<String>,
    host: usize,
}

/// The response, or `None` for 404.
pub fn ignore_not_found(response: Result<Response, ClientError>) -> Result<Option<Response>, ClientError> {
    match response {
        Ok(response) => Ok(Some(response)),
        Err(error) if error.status() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Client of the nodes of one search engine.
#[derive(Debug)]
pub struct Client {
    options: ClientOptions,
    session: ArcSwap<Session>,
    /// One task reads the credentials at a time.
    credentials_read_at: tokio::sync::Mutex<Instant>,
    hosts: Mutex<HostRotation>,
    server: ArcSwapOption<Server>,
}

impl Request {
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), body: None, timeout: None }
    }

    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    pub fn json(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Some((Content::Json, body.into()));
        self
    }

    pub fn lines(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Some((Content::Lines, body.into()));
        self
    }
}

impl Client {
    /// Reads the credentials and sets up connections; sends nothing yet. The process must have installed a default
    /// cryptography provider of rustls.
    pub async fn new(options: ClientOptions) -> Result<Self, ClientError> {
        if options.hosts.is_empty() {
            return Err(ClientError::NoHosts);
        }
        if !options.allow_local_addresses
            && let Some((index, kind)) =
                options.hosts.iter().enumerate().find_map(|(n, host)| Some((n, host.local_kind()?)))
        {
            return Err(ClientError::LocalAddress { index, kind });
        }
        let session = Session::new(&options, session::read(&options.credentials).await?)?;
        Ok(Self {
            session: ArcSwap::from_pointee(session),
            credentials_read_at: tokio::sync::Mutex::new(Instant::now()),
            hosts: Mutex::new(HostRotation::new(options.hosts.len())),
            server: ArcSwapOption::empty(),
            options,
        })
    }

    /// Requests the server's name and version and keeps both for later requests.
    pub async fn detect(&self) -> Result<Server, ClientError> {
        let request = Request::get("/");
        let response = self.exchange(&request, None).await?;
        let host = self.options.hosts[response.host].to_string();
        let server = Server::parse(&host, &response.body, response.product.as_deref())?;
        self.server.store(Some(Arc::new(server)));
        Ok(server)
    }

    /// The server found by the last [`Self::detect`].
    pub fn server(&self) -> Option<Server> {
        self.server.load().as_deref().copied()
    }

    /// Sends a request; detects the server first if that has not been done. Statuses from 300 on are errors.
    pub async fn send(&self, request: &Request) -> Result<Response, ClientError> {
        let server = match self.server() {
            Some(server) => server,
            None => self.detect().await?,
        };
        self.exchange(request, Some(server)).await
    }

    async fn exchange(&self, request: &Request, server: Option<Server>) -> Result<Response, ClientError> {
        self.refresh_credentials(false).await?;
        let body = self.compress(request).await?;
        match self.send_to_hosts(request, body.as_ref(), server).await {
            Err(error) if error.status() == Some(401) && self.refresh_credentials(true).await? => {
                self.send_to_hosts(request, body.as_ref(), server).await
            }
            other => other,
        }
    }

    async fn send_to_hosts(
        &self,
        request: &Request,
        body: Option<&Body>,
        server: Option<Server>,
    ) -> Result<Response, ClientError> {
        let order = self.hosts.lock().order(Instant::now());
        let mut failure = ClientError::NoHosts;
        for host in order {
            let timeout = request.timeout.unwrap_or(self.options.request_timeout);
            let response = tokio::time::timeout(timeout, self.send_to_host(host, request, body, server)).await;
            let address = &self.options.hosts[host];
            match response.unwrap_or_else(|_| Err(ClientError::Deadline { host: address.to_string(), timeout })) {
                Ok(response) => {
                    self.hosts.lock().record_success(host);
                    return Ok(response);
                }
                Err(error) if error.allows_other_host() => {
                    tracing::debug!(error = error.chain(), "a node of the search engine failed");
                    self.hosts.lock().record_failure(host, Instant::now());
                    failure = error;
                }
                Err(error) => {
                    self.hosts.lock().record_success(host);
                    return Err(error);
                }
            }
        }
        Err(failure)
    }

    async fn send_to_host(
        &self,
        host: usize,
        request: &Request,
        body: Option<&Body>,
        server: Option<Server>,
    ) -> Result<Response, ClientError> {
        let address = &self.options.hosts[host];
        let url = address
            .join(&request.path)
            .ok_or(ClientError::Address { index: host, problem: "cannot be joined with the path of a request" })?;
        let session = self.session.load_full();
        let mut outgoing = session.http.request(request.method.clone(), url);
        outgoing = outgoing.header(header::ACCEPT, Server::media_type(server, Content::Json));
        if let Some(authorization) = &session.authorization {
            outgoing = outgoing.header(header::AUTHORIZATION, authorization.clone());
        }
        if let Some(body) = body {
            outgoing = outgoing.header(header::CONTENT_TYPE, Server::media_type(server, body.content));
            if body.is_compressed {
                outgoing = outgoing.header(header::CONTENT_ENCODING, "gzip");
            }
            outgoing = outgoing.body(body.bytes.clone());
        }
        let connection_error = |source: reqwest::Error| ClientError::Connection {
            host: address.to_string(),
            source: source.without_url(),
        };
        let mut response = outgoing.send().await.map_err(connection_error)?;
        let status = response.status();
        if status.is_redirection() {
            return Err(ClientError::Redirect { host: address.to_string(), status: status.as_u16() });
        }
        let product = response.headers().get("x-elastic-product").and_then(|value| value.to_str().ok());
        let product = product.map(ToOwned::to_owned);
        let limit = self.options.max_response_bytes;
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(connection_error)? {
            if bytes.len() + chunk.len() > limit {
                return Err(ClientError::TooLarge { host: address.to_string(), limit });
            }
            bytes.extend_from_slice(&chunk);
        }
        if !status.is_success() {
            let error_response = ErrorResponse::parse(status.as_u16(), &bytes);
            return Err(ClientError::Refused { host: address.to_string(), error_response });
        }
        Ok(Response { status: status.as_u16(), body: bytes.into(), product, host })
    }

    /// Reads the credentials again if they are due or `force` is set. Returns true if they changed. Credentials that
    /// cannot be read or used do not replace the old ones.
    async fn refresh_credentials(&self, force: bool) -> Result<bool, ClientError> {
        if !self.options.credentials.can_change() {
            return Ok(false);
        }
        let current = self.session.load_full();
        let mut last_read = self.credentials_read_at.lock().await;
        if !Arc::ptr_eq(&current, &self.session.load_full()) {
            return Ok(true);
        }
        if !force && last_read.elapsed() < self.options.credentials_interval {
            return Ok(false);
        }
        *last_read = Instant::now();
        let new_session = match session::read(&self.options.credentials).await {
            Ok(credentials) if credentials == current.credentials => return Ok(false),
            Ok(credentials) => Session::new(&self.options, credentials),
            Err(error) => Err(error),
        };
        match new_session {
            Ok(session) => {
                tracing::info!("the search engine's credentials changed");
                self.session.store(Arc::new(session));
                Ok(true)
            }
            Err(error) => {
                tracing::warn!(
                    error = error.chain(),
                    "cannot use the search engine's new credentials; the old ones stay in use"
                );
                Ok(false)
            }
        }
    }

    /// The request's body as it is sent to every node.
    async fn compress(&self, request: &Request) -> Result<Option<Body>, ClientError> {
        let Some((content, bytes)) = request.body.clone() else { return Ok(None) };
        if self.options.min_compressed_bytes.is_none_or(|from| bytes.len() < from) {
            return Ok(Some(Body { content, bytes, is_compressed: false }));
        }
        let work = tokio::task::spawn_blocking(move || gzip(&bytes));
        let bytes = work.await.map_err(std::io::Error::other).flatten().map_err(ClientError::Compress)?;
        Ok(Some(Body { content, bytes, is_compressed: true }))
    }
}

/// A body ready to be sent.
#[derive(Debug)]
struct Body {
    content: Content,
    bytes: Bytes,
    is_compressed: bool,
}

fn gzip(bytes: &[u8]) -> std::io::Result<Bytes> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::with_capacity(bytes.len() / 4), flate2::Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish().map(Bytes::from)
}
