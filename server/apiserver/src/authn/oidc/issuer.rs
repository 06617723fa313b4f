//! Discovery document and keys of an issuer. Fetched on first use, after an hour, and when a token names an unknown
//! key, at a limited rate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use crowsnest_component_base::tls;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use super::jose::Keys;
use super::whole;

/// Time after which keys are fetched again, because the issuer may withdraw them.
const KEEP: Duration = Duration::from_secs(3600);
/// Shortest interval between fetches caused by unknown keys or failures.
const PAUSE: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest accepted document in bytes.
const LONGEST: usize = 1 << 20;

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
    TooLong(String),
    #[error("cannot parse the response of {url}")]
    Unreadable { url: String, source: serde_json::Error },
    #[error("{url} names the issuer {got:?}, not {expected:?}")]
    Other { url: String, expected: String, got: String },
    #[error("the issuer's {what} {url:?} is not an https URL")]
    NotSecure { what: &'static str, url: String },
    #[error("{why} (retrying after {} s)", PAUSE.as_secs())]
    Lately { why: String },
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
    at: Instant,
}

/// Times of previous fetches.
#[derive(Debug, Default)]
struct FetchTimes {
    /// Last fetch because of an unknown key.
    for_keys: Option<Instant>,
    /// Last failed fetch and its error.
    failed: Option<(Instant, String)>,
}

/// Client of one issuer with a cache of its documents.
#[derive(Debug)]
pub struct Issuer {
    url: String,
    http: reqwest::Client,
    published: ArcSwapOption<IssuerDocuments>,
    attempts: Mutex<FetchTimes>,
}

impl Issuer {
    pub(super) fn new(url: &str, ca: &str) -> Result<Self, IssuerError> {
        let tls = tls::client_config(ca.as_bytes(), false, None)?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .https_only(true)
            // Redirects are not followed: a response from another address than the issuer's is refused.
            .redirect(reqwest::redirect::Policy::none())
            .timeout(TIMEOUT)
            .build()
            .map_err(IssuerError::Client)?;
        Ok(Self { url: url.to_owned(), http, published: ArcSwapOption::empty(), attempts: Mutex::default() })
    }

    /// Client for the issuer's other endpoints; it trusts the same authority.
    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// The cached documents; fetched if they are missing or older than an hour.
    pub async fn published(&self) -> Result<Arc<IssuerDocuments>, IssuerError> {
        match self.published.load_full() {
            Some(published) if published.at.elapsed() < KEEP => Ok(published),
            // One caller refreshes. Meanwhile, and if the issuer does not respond, the others use the cached
            // documents.
            Some(old) => match self.attempts.try_lock() {
                Ok(mut attempts) => Ok(self.fetch_unless_failed_lately(&mut attempts).await.unwrap_or(old)),
                Err(_) => Ok(old),
            },
            None => {
                let mut attempts = self.attempts.lock().await;
                match self.published.load_full() {
                    Some(published) => Ok(published),
                    None => self.fetch_unless_failed_lately(&mut attempts).await,
                }
            }
        }
    }

    /// Documents newer than `seen`, in which a key was missing; `seen` itself if it was fetched recently.
    pub(super) async fn published_after(
        &self,
        seen: &Arc<IssuerDocuments>,
    ) -> Result<Arc<IssuerDocuments>, IssuerError> {
        let mut attempts = self.attempts.lock().await;
        if let Some(now) = self.published.load_full()
            && !Arc::ptr_eq(&now, seen)
        {
            return Ok(now);
        }
        if attempts.for_keys.is_some_and(|at| at.elapsed() < PAUSE) {
            return Ok(Arc::clone(seen));
        }
        attempts.for_keys = Some(Instant::now());
        self.fetch_unless_failed_lately(&mut attempts).await
    }

    async fn fetch_unless_failed_lately(&self, attempts: &mut FetchTimes) -> Result<Arc<IssuerDocuments>, IssuerError> {
        if let Some((at, why)) = &attempts.failed
            && at.elapsed() < PAUSE
        {
            return Err(IssuerError::Lately { why: why.clone() });
        }
        match self.fetch().await {
            Ok(published) => {
                let published = Arc::new(published);
                self.published.store(Some(Arc::clone(&published)));
                attempts.failed = None;
                Ok(published)
            }
            Err(error) => {
                let why = whole(&error);
                tracing::warn!(why, "cannot fetch the documents of the OpenID Connect issuer");
                attempts.failed = Some((Instant::now(), why));
                Err(error)
            }
        }
    }

    async fn fetch(&self) -> Result<IssuerDocuments, IssuerError> {
        let url = format!("{}/.well-known/openid-configuration", self.url.trim_end_matches('/'));
        let metadata: Metadata = read(&url, &self.get(&url).await?)?;
        if metadata.issuer != self.url {
            return Err(IssuerError::Other { url, expected: self.url.clone(), got: metadata.issuer });
        }
        metadata.check()?;
        let set = self.get(&metadata.jwks_uri).await?;
        let keys =
            Keys::read(&set).map_err(|source| IssuerError::Unreadable { url: metadata.jwks_uri.clone(), source })?;
        Ok(IssuerDocuments { metadata, keys, at: Instant::now() })
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
        let mut answer = request.send().await.map_err(IssuerError::Call)?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(IssuerError::Call)? {
            if body.len() + chunk.len() > LONGEST {
                return Err(IssuerError::TooLong(url.to_owned()));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((answer.status(), body))
    }
}

impl Metadata {
    /// Requires https, because browsers and credentials are sent to these addresses.
    fn check(&self) -> Result<(), IssuerError> {
        let named = [
            ("authorization_endpoint", self.authorization_endpoint.as_deref()),
            ("token_endpoint", self.token_endpoint.as_deref()),
            ("end_session_endpoint", self.end_session_endpoint.as_deref()),
            ("revocation_endpoint", self.revocation_endpoint.as_deref()),
            ("jwks_uri", Some(self.jwks_uri.as_str())),
        ];
        for (what, url) in named {
            if let Some(url) = url
                && !url::Url::parse(url).is_ok_and(|parsed| parsed.scheme() == "https")
            {
                return Err(IssuerError::NotSecure { what, url: url.to_owned() });
            }
        }
        Ok(())
    }
}

fn read<T: DeserializeOwned>(url: &str, body: &[u8]) -> Result<T, IssuerError> {
    serde_json::from_slice(body).map_err(|source| IssuerError::Unreadable { url: url.to_owned(), source })
}
