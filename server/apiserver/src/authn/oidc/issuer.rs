//! Discovery document and keys of an issuer. Fetched on first use, after an hour, and when a token names an unknown
//! key, at a limited rate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use crowsnest_component_base::tls;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use super::format_error_chain;
use super::jose::Keys;

/// Time after which keys are fetched again, because the issuer may withdraw them.
const MAX_DOCUMENT_AGE: Duration = Duration::from_secs(3600);
/// Minimum interval between fetches caused by unknown keys or failures.
const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(10);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of accepted documents in bytes.
const MAX_DOCUMENT_BYTES: usize = 1 << 20;

/// Reason why the documents of the issuer cannot be fetched or used.
#[derive(Debug, thiserror::Error)]
pub enum IssuerError {
    #[error("cannot use the certificate authority of the issuer (--oidc-ca-file)")]
    Authority(#[from] rustls::Error),
    #[error("cannot create an HTTP client")]
    Client(#[source] reqwest::Error),
    /// The error of reqwest names the address.
    #[error("cannot reach the issuer")]
    Call(#[source] reqwest::Error),
    #[error("{url} returned status {status}")]
    Status { url: String, status: http::StatusCode },
    #[error("the response of {0} is too large")]
    TooLarge(String),
    #[error("cannot parse the response of {url}")]
    Malformed { url: String, source: serde_json::Error },
    #[error("{url} names the issuer {got:?}, not {expected:?}")]
    IssuerMismatch { url: String, expected: String, got: String },
    #[error("the issuer's {endpoint} {url:?} is not an https URL")]
    NotSecure { endpoint: &'static str, url: String },
    #[error("{reason} (retrying after {} s)", MIN_FETCH_INTERVAL.as_secs())]
    FailedRecently { reason: String },
}

/// The discovery document, limited to the fields used here.
#[derive(Debug, Clone, Deserialize)]
pub struct Metadata {
    pub issuer: String,
    jwks_uri: String,
    /// Endpoints for signing in and for exchanging the code for tokens. Not needed to verify tokens.
    pub authorization_endpoint: Option<String>,
    pub token_endpoint: Option<String>,
    pub end_session_endpoint: Option<String>,
    pub revocation_endpoint: Option<String>,
    pub token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

/// Snapshot of the issuer's documents.
#[derive(Debug)]
pub struct IssuerDocuments {
    pub metadata: Metadata,
    pub(super) keys: Keys,
    fetched_at: Instant,
}

/// Times of previous fetches.
#[derive(Debug, Default)]
struct FetchTimes {
    /// Last fetch because of an unknown key.
    last_key_fetch: Option<Instant>,
    /// Last failed fetch and its error.
    last_failure: Option<(Instant, String)>,
}

/// Client of one issuer with a cache of its documents.
#[derive(Debug)]
pub struct Issuer {
    url: String,
    http: reqwest::Client,
    documents: ArcSwapOption<IssuerDocuments>,
    fetch_times: Mutex<FetchTimes>,
}

impl Issuer {
    pub(super) fn new(url: &str, ca: &str) -> Result<Self, IssuerError> {
        let tls = tls::client_config(ca.as_bytes(), false, None)?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .https_only(true)
            // Redirects are not followed: a response from another address than the issuer's is refused.
            .redirect(reqwest::redirect::Policy::none())
            .timeout(REQUEST_TIMEOUT)
            .build()
            .map_err(IssuerError::Client)?;
        Ok(Self { url: url.to_owned(), http, documents: ArcSwapOption::empty(), fetch_times: Mutex::default() })
    }

    /// Client for the issuer's other endpoints; it trusts the same authority.
    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// The cached documents; fetched if they are missing or older than an hour.
    pub async fn documents(&self) -> Result<Arc<IssuerDocuments>, IssuerError> {
        match self.documents.load_full() {
            Some(documents) if documents.fetched_at.elapsed() < MAX_DOCUMENT_AGE => Ok(documents),
            // One caller refreshes. Meanwhile, and if the issuer does not respond, the others use the cached
            // documents.
            Some(old) => match self.fetch_times.try_lock() {
                Ok(mut fetch_times) => Ok(self.fetch_unless_failed_recently(&mut fetch_times).await.unwrap_or(old)),
                Err(_) => Ok(old),
            },
            None => {
                let mut fetch_times = self.fetch_times.lock().await;
                match self.documents.load_full() {
                    Some(documents) => Ok(documents),
                    None => self.fetch_unless_failed_recently(&mut fetch_times).await,
                }
            }
        }
    }

    /// Fetches documents that are newer than `outdated`, in which a key was missing. Returns `outdated` itself if keys
    /// were fetched for this reason recently.
    pub(super) async fn refresh_documents(
        &self,
        outdated: &Arc<IssuerDocuments>,
    ) -> Result<Arc<IssuerDocuments>, IssuerError> {
        let mut fetch_times = self.fetch_times.lock().await;
        if let Some(current) = self.documents.load_full()
            && !Arc::ptr_eq(&current, outdated)
        {
            return Ok(current);
        }
        if fetch_times.last_key_fetch.is_some_and(|at| at.elapsed() < MIN_FETCH_INTERVAL) {
            return Ok(Arc::clone(outdated));
        }
        fetch_times.last_key_fetch = Some(Instant::now());
        self.fetch_unless_failed_recently(&mut fetch_times).await
    }

    async fn fetch_unless_failed_recently(
        &self,
        fetch_times: &mut FetchTimes,
    ) -> Result<Arc<IssuerDocuments>, IssuerError> {
        if let Some((at, reason)) = &fetch_times.last_failure
            && at.elapsed() < MIN_FETCH_INTERVAL
        {
            return Err(IssuerError::FailedRecently { reason: reason.clone() });
        }
        match self.fetch().await {
            Ok(documents) => {
                let documents = Arc::new(documents);
                self.documents.store(Some(Arc::clone(&documents)));
                fetch_times.last_failure = None;
                Ok(documents)
            }
            Err(error) => {
                let reason = format_error_chain(&error);
                tracing::warn!(reason, "cannot fetch the documents of the OpenID Connect issuer");
                fetch_times.last_failure = Some((Instant::now(), reason));
                Err(error)
            }
        }
    }

    async fn fetch(&self) -> Result<IssuerDocuments, IssuerError> {
        let url = format!("{}/.well-known/openid-configuration", self.url.trim_end_matches('/'));
        let metadata: Metadata = parse_json(&url, &self.get(&url).await?)?;
        if metadata.issuer != self.url {
            return Err(IssuerError::IssuerMismatch { url, expected: self.url.clone(), got: metadata.issuer });
        }
        metadata.check()?;
        let set = self.get(&metadata.jwks_uri).await?;
        let keys =
            Keys::parse(&set).map_err(|source| IssuerError::Malformed { url: metadata.jwks_uri.clone(), source })?;
        Ok(IssuerDocuments { metadata, keys, fetched_at: Instant::now() })
    }

    async fn get(&self, url: &str) -> Result<Vec<u8>, IssuerError> {
        self.send(url, self.http.get(url)).await.and_then(|(status, body)| match status {
            http::StatusCode::OK => Ok(body),
            status => Err(IssuerError::Status { url: url.to_owned(), status }),
        })
    }

    /// Sends a request and returns status and complete body.
    pub async fn send(
        &self,
        url: &str,
        request: reqwest::RequestBuilder,
    ) -> Result<(http::StatusCode, Vec<u8>), IssuerError> {
        let mut response = request.send().await.map_err(IssuerError::Call)?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(IssuerError::Call)? {
            if body.len() + chunk.len() > MAX_DOCUMENT_BYTES {
                return Err(IssuerError::TooLarge(url.to_owned()));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((response.status(), body))
    }
}

impl Metadata {
    /// Requires https, because browsers and credentials are sent to these addresses.
    fn check(&self) -> Result<(), IssuerError> {
        let endpoints = [
            ("authorization_endpoint", self.authorization_endpoint.as_deref()),
            ("token_endpoint", self.token_endpoint.as_deref()),
            ("end_session_endpoint", self.end_session_endpoint.as_deref()),
            ("revocation_endpoint", self.revocation_endpoint.as_deref()),
            ("jwks_uri", Some(self.jwks_uri.as_str())),
        ];
        for (endpoint, url) in endpoints {
            if let Some(url) = url
                && !url::Url::parse(url).is_ok_and(|parsed| parsed.scheme() == "https")
            {
                return Err(IssuerError::NotSecure { endpoint, url: url.to_owned() });
            }
        }
        Ok(())
    }
}

fn parse_json<T: DeserializeOwned>(url: &str, body: &[u8]) -> Result<T, IssuerError> {
    serde_json::from_slice(body).map_err(|source| IssuerError::Malformed { url: url.to_owned(), source })
}
