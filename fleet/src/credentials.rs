//! From a Cluster object and its Secrets to everything a connection needs. Pure: no I/O.
//!
//! The rules are Karmada's: `spec.secretRef` names a Secret with `token` and `caBundle`, `spec.impersonatorSecretRef`
//! one with `token`; `proxyHeader` values are split at commas.

use crate::Error;
use crowsnest_api::cluster::{Cluster, SECRET_CA_DATA_KEY, SECRET_TOKEN_KEY};
use crowsnest_api::names::ClusterName;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use k8s_openapi::api::core::v1::Secret;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A bearer token that never shows itself in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

impl Token {
    pub fn new(token: impl Into<Arc<str>>) -> Self {
        Self(token.into())
    }

    /// The secret itself, for an Authorization header.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// What a connection is made of. Two equal specs mean the connection can be kept.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionSpec {
    pub cluster: ClusterName,
    /// `https://host:port[/prefix]`.
    pub endpoint: Uri,
    /// PEM; None means the system's roots.
    pub ca_bundle: Option<Vec<u8>>,
    pub insecure_skip_tls_verification: bool,
    pub token: Option<Token>,
    pub proxy_url: Option<Uri>,
    pub proxy_header: HeaderMap,
}

/// Secrets of the control plane by (namespace, name).
pub type Secrets = BTreeMap<(String, String), Arc<Secret>>;

impl ConnectionSpec {
    /// Reads the Cluster and the Secret it names.
    pub fn of(name: &ClusterName, cluster: &Cluster, secrets: &Secrets) -> Result<Self, Error> {
        let spec = &cluster.spec;
        let endpoint = endpoint(name, &spec.api_endpoint)?;
        let reference = spec
            .secret_ref
            .as_ref()
            .ok_or_else(|| Error::MissingReference { cluster: name.clone(), field: "secretRef" })?;
        let found = Found { cluster: name, namespace: &reference.namespace, name: &reference.name };
        let secret = found.look_up(secrets)?;
        let token = found.token(secret)?;
        let ca_bundle = found.bytes(secret, SECRET_CA_DATA_KEY).filter(|bundle| !bundle.is_empty());
        let proxy_url = match spec.proxy_url.as_str() {
            "" => None,
            url => Some(proxy_url(name, url)?),
        };
        Ok(Self {
            cluster: name.clone(),
            endpoint,
            ca_bundle,
            insecure_skip_tls_verification: spec.insecure_skip_tls_verification,
            token: Some(token),
            proxy_url,
            proxy_header: proxy_header(name, spec.proxy_header.iter())?,
        })
    }
}

/// The token a proxied request carries while it impersonates the caller.
pub fn impersonator_token(name: &ClusterName, cluster: &Cluster, secrets: &Secrets) -> Result<Token, Error> {
    let reference = cluster
        .spec
        .impersonator_secret_ref
        .as_ref()
        .ok_or_else(|| Error::MissingReference { cluster: name.clone(), field: "impersonatorSecretRef" })?;
    let found = Found { cluster: name, namespace: &reference.namespace, name: &reference.name };
    found.token(found.look_up(secrets)?)
}

struct Found<'a> {
    cluster: &'a ClusterName,
    namespace: &'a str,
    name: &'a str,
}

impl Found<'_> {
    fn error(&self, reason: impl Into<String>) -> Error {
        Error::Secret {
            cluster: self.cluster.clone(),
            namespace: self.namespace.to_owned(),
            name: self.name.to_owned(),
            reason: reason.into(),
        }
    }

    fn look_up<'s>(&self, secrets: &'s Secrets) -> Result<&'s Secret, Error> {
        let key = (self.namespace.to_owned(), self.name.to_owned());
        secrets.get(&key).map(|secret| &**secret).ok_or_else(|| self.error("not found"))
    }

    fn bytes(&self, secret: &Secret, key: &str) -> Option<Vec<u8>> {
        secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone())
    }

    fn token(&self, secret: &Secret) -> Result<Token, Error> {
        let bytes = self.bytes(secret, SECRET_TOKEN_KEY).filter(|token| !token.is_empty());
        let bytes = bytes.ok_or_else(|| self.error("has no token"))?;
        let text = String::from_utf8(bytes).map_err(|_| self.error("has a token that is not text"))?;
        HeaderValue::from_str(&format!("Bearer {}", text.trim()))
            .map_err(|_| self.error("has a token that cannot be sent in a header"))?;
        Ok(Token::new(text.trim()))
    }
}

fn endpoint(cluster: &ClusterName, text: &str) -> Result<Uri, Error> {
    let unusable = |reason: String| Error::Endpoint { cluster: cluster.clone(), endpoint: text.to_owned(), reason };
    if text.is_empty() {
        return Err(unusable("it is empty".to_owned()));
    }
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    let uri: Uri = with_scheme.parse().map_err(|e: http::uri::InvalidUri| unusable(e.to_string()))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("https" | "http"), Some(host)) if !host.is_empty() => Ok(uri),
        (Some("https" | "http"), _) => Err(unusable("it has no host".to_owned())),
        (scheme, _) => Err(unusable(format!("scheme {} is not http or https", scheme.unwrap_or_default()))),
    }
}

fn proxy_url(cluster: &ClusterName, text: &str) -> Result<Uri, Error> {
    let unusable = |reason: String| Error::Proxy { cluster: cluster.clone(), reason };
    let uri: Uri = text.parse().map_err(|e: http::uri::InvalidUri| unusable(e.to_string()))?;
    match uri.scheme_str() {
        Some("http" | "https" | "socks5") => Ok(uri),
        scheme => Err(unusable(format!("scheme {} is not http, https or socks5", scheme.unwrap_or_default()))),
    }
}

fn proxy_header<'a>(
    cluster: &ClusterName,
    headers: impl Iterator<Item = (&'a String, &'a String)>,
) -> Result<HeaderMap, Error> {
    let mut map = HeaderMap::new();
    for (name, values) in headers {
        let unusable = |reason: String| Error::Proxy { cluster: cluster.clone(), reason };
        let name: HeaderName = name.parse().map_err(|_| unusable(format!("{name:?} is not a header name")))?;
        for value in values.split(',') {
            let value = HeaderValue::from_str(value)
                .map_err(|_| unusable(format!("the value of header {name} cannot be sent")))?;
            map.append(name.clone(), value);
        }
    }
    Ok(map)
}
